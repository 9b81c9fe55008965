package cli

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

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

// hubAndSpokes starts a hub and n spokes with the same pod range, and writes a kubeconfig for them.
func hubAndSpokes(t testing.TB, n int) (hub *fakeapi.Server, spokes []*fakeapi.Server, file string) {
	t.Helper()
	var contexts []string
	start := func(name string, number int) *fakeapi.Server {
		s, err := fakeapi.New(fakeapi.Objects(fmt.Sprintf("%08d-id-of-%s", number, name), name+"-1", fmt.Sprintf("172.18.%d.11", number+1), "10.244.0.0/16")...)
		kit.NoError(t, err)
		t.Cleanup(s.Close)
		contexts = append(contexts, name+"="+s.URL)
		return s
	}
	hub = start("hub", 0)
	for i := range n {
		spokes = append(spokes, start(fmt.Sprintf("spoke-%d", i+1), i+1))
	}
	return hub, spokes, kubeconfig(t, filepath.Join(t.TempDir(), "kubeconfig"), contexts...)
}

// atOnce runs command lines concurrently, each in its own process.
func atOnce(t *testing.T, file string, lines []string) {
	t.Helper()
	var wg sync.WaitGroup
	begin := make(chan struct{})
	for _, line := range lines {
		cmd := exec.CommandContext(t.Context(), os.Args[0], strings.Fields(line)...)
		cmd.Env = []string{commandEnv + "=1", "HOME=" + t.TempDir(), "KUBECONFIG=" + file}
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		wg.Go(func() {
			<-begin
			err := cmd.Run()
			kit.ErrorIf(t, err != nil, "%s: %v\n%s", line, err, out.String())
		})
	}
	close(begin)
	wg.Wait()
}

// checkLedger checks that a cluster has allocated nothing twice.
func checkLedger(t *testing.T, s *fakeapi.Server, peers int) {
	t.Helper()
	kit.CheckNoError(t, ledger.Check(t.Context(), s.Client, peers, netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("10.96.0.0/16")))
}

// Twenty processes peer with one hub concurrently: all succeed, and nothing is allocated twice. Then twenty processes remove the peerings.
func TestPeerAtOnce(t *testing.T) {
	kit.NotShort(t)
	const n = 20
	hub, spokes, file := hubAndSpokes(t, n)
	var peer, unpeer []string
	for i := range n {
		pair := fmt.Sprintf("hub spoke-%d", i+1)
		if i%2 == 1 {
			pair = fmt.Sprintf("spoke-%d hub", i+1)
		}
		peer = append(peer, "peer "+pair+" --timeout 5m")
		unpeer = append(unpeer, "unpeer "+pair+" --timeout 5m")
	}
	start := time.Now()
	atOnce(t, file, peer)
	t.Logf("%d peer commands at once took %s", n, time.Since(start).Round(time.Millisecond))
	if t.Failed() {
		return
	}
	checkLedger(t, hub, n)
	for _, s := range spokes {
		checkLedger(t, s, 1)
	}
	atOnce(t, file, unpeer)
	for i, s := range append(spokes, hub) {
		var namespaces corev1.NamespaceList
		var ledgers v1alpha1.ClusterNetworkList
		var peerings v1alpha1.PeeringList
		for _, list := range []client.ObjectList{&namespaces, &ledgers, &peerings} {
			kit.NoError(t, s.Client.List(t.Context(), list))
		}
		kit.ErrorIf(t, len(namespaces.Items) != 1 || len(ledgers.Items)+len(peerings.Items) > 0,
			"cluster %d has %d namespaces, %d ledgers, %d Peerings left", i, len(namespaces.Items), len(ledgers.Items), len(peerings.Items))
	}
}

// One command peers a hub with 64 spokes.
func TestManySpokes(t *testing.T) {
	kit.NotShort(t)
	n := 16
	if kit.Full() {
		n = 64
	}
	hub, spokes, file := hubAndSpokes(t, n)
	var names []string
	for i := range n {
		names = append(names, fmt.Sprintf("spoke-%d", i+1))
	}
	isolate(t)
	t.Setenv("KUBECONFIG", file)
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
