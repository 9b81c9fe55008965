package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// flood makes the kernel of the calling thread's network remember connections until its table is nearly full: by packets to a subnet,
// each to another address or port.
func flood(ctx context.Context, to netip.Prefix) error {
	read := func(name string) int {
		raw, _ := os.ReadFile("/proc/thread-self/net/../../../sys/net/netfilter/nf_conntrack_" + name)
		if raw == nil {
			raw, _ = os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_" + name)
		}
		n, _ := strconv.Atoi(strings.TrimSpace(string(raw)))
		return n
	}
	conn, err := net.ListenUDP("udp4", nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	most := read("max")
	if most == 0 {
		return fmt.Errorf("connections are not tracked")
	}
	for addr := to.Addr().Next(); to.Contains(addr); addr = addr.Next() {
		for port := 1; port < 1<<16; port++ {
			_, _ = conn.WriteToUDPAddrPort([]byte{0}, netip.AddrPortFrom(addr, uint16(port))) // the next one may get out
		}
		if read("count") >= most*98/100 || ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return fmt.Errorf("only %d of %d connections", read("count"), most)
}

// skewVersions has a's agents of an older version: a command of that version peers the clusters again, and b is upgraded.
func skewVersions(t *testing.T, ctx context.Context, x *patients) func() {
	head, old := *binDir, release(t, olderVersion)
	for _, c := range []*cluster{x.a, x.b} {
		loadImage(t, ctx, c, filepath.Join(old, "liqonet-agent.tar"))
	}
	mustLiqonet(t, ctx, "unpeer", x.a.Name, x.b.Name)
	planes := x.peered
	x.peered, *binDir = 0, old
	t.Cleanup(func() { *binDir = head })
	x.peer(t, ctx, planes)
	*binDir = head
	mustLiqonet(t, ctx, "upgrade", x.b.Name)
	return func() { mustLiqonet(t, context.WithoutCancel(ctx), "upgrade", x.a.Name) }
}

// renewAccount deletes the account of the node agents, and creates it again as it was.
func renewAccount(t *testing.T, ctx context.Context, x *patients) func() {
	out := x.a.kubectl(t, ctx, "-n", "liqonet-system", "get", "serviceaccount", "liqonet-node", "--show-managed-fields", "-o", "json")
	account := map[string]any{}
	try(t, json.Unmarshal([]byte(out), &account))
	meta := account["metadata"].(map[string]any)
	for _, field := range []string{"uid", "resourceVersion", "creationTimestamp", "managedFields"} {
		delete(meta, field)
	}
	raw := must(json.Marshal(account))(t)
	x.a.kubectl(t, ctx, "-n", "liqonet-system", "delete", "serviceaccount", "liqonet-node")
	must(x.a.Run(ctx, string(raw), "create", "-f", "-"))(t)
	return func() {
		x.a.kubectl(t, context.WithoutCancel(ctx), "-n", "liqonet-system", "delete", "pods", "-l", "app.kubernetes.io/component=node")
	}
}

// loseImage takes the agents' image from a node, where a pod is to start.
func loseImage(t *testing.T, ctx context.Context, x *patients) func() {
	n := x.bystander.Node
	out := must(n.Command(ctx, "/lab/bin/ctr", "--namespace", "k8s.io", "images", "ls", "-q").Output())(t)
	remove := []string{"--namespace", "k8s.io", "images", "rm", "--sync"}
	for name := range strings.FieldsSeq(string(out)) {
		if strings.Contains(name, "liqonet-agent") {
			remove = append(remove, name)
		}
	}
	// Those that others know by the digest, too.
	try(t, runs(n.Command(ctx, "/lab/bin/ctr", remove...)))
	recreate := func(ctx context.Context) {
		x.a.kubectl(t, ctx, "-n", "liqonet-system", "delete", "pods", "-l", "app.kubernetes.io/component=node", "--field-selector", "spec.nodeName="+n.Name)
	}
	recreate(ctx)
	return func() {
		loadImage(t, context.WithoutCancel(ctx), x.a, program("liqonet-agent.tar"))
		recreate(context.WithoutCancel(ctx))
	}
}

// starve lets the agent of a node run for a short time in two seconds only, as a machine does that others keep busy. It needs so little that no
// limit of a cgroup is low enough.
func starve(t *testing.T, _ context.Context, x *patients) func() {
	pid := x.a.nodeAgent(t, x.bystander.Node.Name).pid
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			_ = syscall.Kill(pid, syscall.SIGSTOP) // it may have ended
			select {
			case <-done:
				_ = syscall.Kill(pid, syscall.SIGCONT)
				return
			case <-time.After(1850 * time.Millisecond): // other than the pace of what it does
			}
			_ = syscall.Kill(pid, syscall.SIGCONT)
			time.Sleep(50 * time.Millisecond)
		}
	})
	return func() {
		close(done)
		wg.Wait()
	}
}

// duplicateAddress has another machine on the nodes' network with the address of one of them.
func duplicateAddress(t *testing.T, ctx context.Context, x *patients) func() {
	script := fmt.Sprintf(`unshare --net sleep 100000 >/dev/null 2>&1 & pid=$!
		sleep 0.5
		ip link add link eth0 name e2edup netns $pid type macvlan mode bridge
		nsenter --net=/proc/$pid/ns/net ip addr add %s/24 dev e2edup
		nsenter --net=/proc/$pid/ns/net ip link set e2edup up
		trap "kill $pid" TERM
		wait`, x.bystander.Node.Address)
	return background(t, x.carrier.Node, "sh", "-c", script)
}

// deniesEverywhere has a policy of Calico that denies packets in most namespaces. No Calico runs here: nodes drop what it
// would drop.
func deniesEverywhere(t *testing.T, ctx context.Context, x *patients) func() {
	apply(t, ctx, x.a, globalPolicies)
	const definition = "crd globalnetworkpolicies.crd.projectcalico.org"
	x.kubectl(t, ctx, "wait --for=condition=Established "+definition)
	apply(t, ctx, x.a, globalDeny)
	repair := dropsBetween("in ip saddr %s meta l4proto udp drop", "out ip daddr %s meta l4proto udp drop")(t, ctx, x)
	return func() {
		repair()
		x.kubectl(t, context.WithoutCancel(ctx), "delete "+definition)
	}
}
