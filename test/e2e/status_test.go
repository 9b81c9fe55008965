package e2e

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/manifests"
)

const (
	// noticeTimeout is within what status has to tell the truth about a tunnel
	// that is cut, recoveryTimeout within what it works again by itself.
	noticeTimeout   = 10 * time.Second
	recoveryTimeout = 20 * time.Second
)

// Status tells the truth: a tunnel that is cut is not Connected, within seconds,
// and the exit code says so; when it is repaired, all comes back by itself. After
// all that, nobody has seen a private key. said is what peer has printed.
func statusTellsTheTruth(t *testing.T, ctx context.Context, a, b *cluster, said result) {
	t.Run("cut and repaired", func(t *testing.T) {
		repair := cut(t, ctx, a, b)
		defer repair()
		eventually(t, ctx, noticeTimeout, "status of a tunnel that is cut", func() string {
			r := liqonet(t, ctx, "", "status", "-o", "json", a.Name, b.Name)
			views := parseStatus(t, r.stdout)
			if r.code != 7 || len(views) != 2 {
				return fmt.Sprintf("exit code %d, %d views", r.code, len(views))
			}
			for _, v := range views {
				if v.State == "Connected" || v.State == "Degraded" || v.Message == "" {
					return fmt.Sprintf("%s says %s: %q", v.Cluster, v.State, v.Message)
				}
				// What is measured has to agree with it.
				if v.LossPercent == 0 {
					return fmt.Sprintf("%s says %d%% loss", v.Cluster, v.LossPercent)
				}
			}
			return ""
		})
		// A single cluster, too.
		status(t, ctx, 7, a)
		repair()
		checkRepaired(t, ctx, a, b)
	})
	checkSecrets(t, ctx, said, a, b)
}

// checkRepaired waits until packets pass and status says so.
func checkRepaired(t *testing.T, ctx context.Context, a, b *cluster) {
	t.Helper()
	for _, c := range []*cluster{a, b} {
		// Until then status can still tell of what died as if it lived.
		if out, err := c.Run(ctx, "", "-n", "liqonet-system", "rollout", "status", "deployments", "-l", "app.kubernetes.io/name=liqonet", "--timeout", recoveryTimeout.String()); err != nil {
			t.Errorf("%s: %v\n%s", c.Name, err, out)
		}
	}
	eventually(t, ctx, recoveryTimeout, "repaired", func() string {
		r := liqonet(t, ctx, "", "status", "-o", "json", a.Name, b.Name)
		views := parseStatus(t, r.stdout)
		if r.code != 0 || len(views) != 2 {
			return fmt.Sprintf("status: exit code %d\n%s%s", r.code, r.stdout, r.stderr)
		}
		if problem := unreached(t, views, a, b); problem != "" {
			return problem
		}
		// What died may only now be known to be gone, or its successor be new.
		r = liqonet(t, ctx, "", "status", a.Name, b.Name)
		return unless(r.code == 0, "%s", r.stdout+r.stderr)
	})
	if !t.Failed() {
		checkPair(t, ctx, a, b)
	}
}

// unreached says which pod of the one does not reach which of the other.
func unreached(t *testing.T, views map[[2]string]view, a, b *cluster) string {
	t.Helper()
	for from, to := range bothWays(a, b) {
		for _, p := range from.pods {
			for _, target := range to.pods {
				if _, err := p.call("udp", viewOf(t, views, to, from).seenAs(t, target.IP), shortTimeout); err != nil {
					return err.Error()
				}
			}
		}
	}
	return ""
}

// cut drops the tunnel's packets on all nodes of the cluster that is the server,
// before anybody else sees them. The function that it returns ends that; it may
// be called twice.
func cut(t *testing.T, ctx context.Context, a, b *cluster) func() {
	t.Helper()
	views := status(t, ctx, 0, a, b)
	server, client := a, viewOf(t, views, b, a)
	if v := viewOf(t, views, a, b); v.Role == "Client" {
		server, client = b, v
	}
	_, port, err := net.SplitHostPort(client.Endpoint)
	require(t, err == nil, "%s is the client and its endpoint is %q: %v", client.Cluster, client.Endpoint, err)
	return sync.OnceFunc(dropOn(t, ctx, server.nodes, "in udp dport "+port+" drop"))
}

// checkSecrets looks for the private keys wherever they must not be.
func checkSecrets(t *testing.T, ctx context.Context, said result, a, b *cluster) {
	where := map[string]string{"peer's output": said.stdout + said.stderr}
	for _, format := range []string{"table", "json", "yaml"} {
		r := mustLiqonet(t, ctx, "status", a.Name, b.Name, "-o", format)
		where["status -o "+format] = r.stdout + r.stderr
	}
	history := mustLiqonet(t, ctx, "status", a.Name, b.Name, "--history", "-o", "wide")
	where["status --history"] = history.stdout + history.stderr
	keys := map[string][]byte{}
	for _, c := range []*cluster{a, b} {
		objs := must(c.objects(ctx, mentioned))(t)
		for name, u := range objs {
			if u.GetKind() != "Secret" {
				raw := must(json.Marshal(u))(t)
				where[c.Name+": "+name] = string(raw)
				continue
			}
			keys[c.Name+": "+name] = privateKey(t, u)
		}
		logs, err := c.Run(ctx, "", "-n", "liqonet-system", "logs", "-l", "app.kubernetes.io/name=liqonet", "--tail=-1")
		expect(t, err == nil && len(logs) != 0, "no logs of the agents: %v", err)
		where[c.Name+": logs of the agents"] = logs
		nodes := must(c.dynamic.Resource(schema.GroupVersionResource{Version: "v1", Resource: "nodes"}).List(ctx, metav1.ListOptions{}))(t)
		where[c.Name+": nodes"] = fmt.Sprint(nodes)
	}
	expect(t, len(keys) == 10,
		"%d Secrets with keys, want the gateway's two, the tunnel's pre-shared, the overlay's and the identity in each cluster", len(keys))
	for name, key := range keys {
		for place, text := range where {
			for _, form := range []string{
				string(key), base64.StdEncoding.EncodeToString(key), base64.URLEncoding.EncodeToString(key), hex.EncodeToString(key), fmt.Sprint(key),
			} {
				expect(t, !strings.Contains(text, form), "%s contains the private key of %s", place, name)
			}
		}
	}
}

// privateKey is a gateway's, a tunnel's pre-shared one, or that of the overlay.
func privateKey(t *testing.T, secret *unstructured.Unstructured) []byte {
	name := v1alpha1.PrivateKeyFile
	switch {
	case manifests.OverlayGeneration(secret.GetName()) > 0:
		name = v1alpha1.OverlayKeyFile
	case strings.Contains(secret.GetName(), "-psk-"):
		name = v1alpha1.PresharedKeyFile
	}
	encoded, _, err := unstructured.NestedString(secret.Object, "data", name)
	if err != nil {
		t.Fatal(err)
	}
	key, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil || len(key) != 32 {
		t.Fatalf("the key in Secret %s has %d bytes, %v; want 32", secret.GetName(), len(key), err)
	}
	return key
}
