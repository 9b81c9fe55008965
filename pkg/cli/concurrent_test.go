package cli

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/test/fakeapi"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/ledger"
)

// commandEnv makes this program run the command instead of the tests, so that tests can run it in separate processes.
const commandEnv = "CLI_TEST_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(commandEnv) != "" {
		os.Exit(Run(context.Background(), os.Args[1:], Streams{Out: os.Stdout, Err: os.Stderr}))
	}
	os.Exit(m.Run())
}

// hubAndSpokes starts a hub and n spokes with the same pod range, and isolates the test, with a kubeconfig for them.
func hubAndSpokes(t testing.TB, n int) (hub *fakeapi.Server, spokes []*fakeapi.Server, file string) {
	t.Helper()
	hub = startNumbered(t, 1, "00000000-id-of-hub", "hub")
	contexts := []string{"hub=" + hub.URL}
	for i := range n {
		name := fmt.Sprintf("spoke-%d", i+1)
		spokes = append(spokes, startNumbered(t, i+2, fmt.Sprintf("%08d-id-of-%s", i+1, name), name))
		contexts = append(contexts, name+"="+spokes[i].URL)
	}
	return hub, spokes, filepath.Join(useContexts(t, contexts...), "kubeconfig")
}

// checkLedger checks that a cluster has allocated nothing twice.
func checkLedger(t *testing.T, s *fakeapi.Server, peers int) {
	t.Helper()
	kit.CheckNoError(t, ledger.Check(t.Context(), s.Client, peers, netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("10.96.0.0/16")))
}

// One command peers a hub with 64 spokes.
func TestManySpokes(t *testing.T) {
	kit.NotShort(t)
	n := 8
	if kit.Full() {
		n = 64
	}
	hub, spokes, _ := hubAndSpokes(t, n)
	var names []string
	for i := range n {
		names = append(names, fmt.Sprintf("spoke-%d", i+1))
	}
	start := time.Now()
	code, stdout, stderr := run(t, "peer", "hub", "--spokes", strings.Join(names, ","), "--timeout", "9m")
	kit.FatalIf(t, code != ExitOK || strings.Count(stdout, "are peered (") != n, "exit code %d\n%s\n%s", code, stdout, stderr)
	t.Logf("%d peerings took %s", n, time.Since(start).Round(time.Millisecond))
	checkLedger(t, hub, n)
	for _, s := range spokes {
		checkLedger(t, s, 1)
	}
	for i, e := range ledgerOf(t, hub).Spec.Peers {
		kit.ErrorIf(t, e.Name != names[i] || int(e.Index) != i,
			"entry %d is %s with index %d: not in the order that was given", i, e.Name, e.Index)
	}
	command(t, "unpeer", "hub", "--spokes", strings.Join(names, ","), "--timeout", "9m").ends(ExitOK)
}

func ledgerOf(t *testing.T, s *fakeapi.Server) *v1alpha1.ClusterNetwork {
	t.Helper()
	cn := &v1alpha1.ClusterNetwork{}
	kit.NoError(t, s.Client.Get(t.Context(), types.NamespacedName{Name: v1alpha1.ClusterNetworkName}, cn))
	return cn
}
