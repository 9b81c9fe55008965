package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/peering"
	"github.com/liqonet/liqonet/test/kit"
)

func TestTimeoutByNodes(t *testing.T) {
	cluster := func(nodes int) *kube.Cluster {
		b := fake.NewClientBuilder()
		for i := range nodes {
			b.WithObjects(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(i)}})
		}
		return &kube.Cluster{Client: b.Build()}
	}
	hub, silent := cluster(7), &kube.Cluster{SkipReason: kube.ErrSkipped}
	pairs := []peering.Pair{{hub, cluster(3)}, {hub, silent}}
	for args, want := range map[string]time.Duration{
		"":              time.Minute + 10*timeoutPerNode,
		"--timeout=30s": 30 * time.Second,
		"--timeout=1m":  time.Minute, // an explicit value that equals the default
	} {
		parent, interrupt := context.WithCancelCause(t.Context())
		defer interrupt(nil)
		cmd := &cobra.Command{}
		runPerNode(cmd, time.Minute, func(cmd *cobra.Command, _ []string, extend extendTimeout) error {
			start := time.Now()
			ctx, cancel := extend(pairs)
			defer cancel()
			at, _ := ctx.Deadline()
			more := at.Sub(start)
			kit.ErrorIf(t, more > want || more < want-5*time.Second, "%q: want it to end after %s, got %s", args, want, more)
			why := errors.New("interrupted")
			interrupt(why)
			<-ctx.Done()
			err := context.Cause(ctx)
			kit.ErrorIf(t, !errors.Is(err, why), "%q: want it to be interrupted, got %v", args, err)
			return nil
		})
		cmd.SetArgs(strings.Fields(args))
		kit.CheckNoError(t, cmd.ExecuteContext(parent))
	}
}
