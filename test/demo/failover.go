package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/liqonet/liqonet/test/flow"
	"github.com/liqonet/liqonet/test/lab"
	"github.com/liqonet/liqonet/test/netns/enter"
	"github.com/liqonet/liqonet/test/workload"
)

const (
	// cutTime is how long the gateway's node is cut off.
	cutTime = 3 * time.Second
	// steady is how many packets in a row are answered before that, and after it.
	steady = 100
	// answerTimeout is within what they are.
	answerTimeout = time.Minute
)

// failover cuts a gateway's node off while a pod calls another one, and prints what these notice.
func (d *demo) failover(ctx context.Context) error {
	a, b := d.clusters[0], d.clusters[1]
	from := d.pods[a][0]
	plane, err := a.Run(ctx, "", "get", "nodenetworks", "-o", `jsonpath={.items[?(@.metadata.name=="`+from.Node+`")].status.gateways[?(@.active==true)].plane}`)
	if err != nil {
		return err
	}
	node, err := b.Run(ctx, "", "get", "peering", a.Name, "-o", "jsonpath={.status.planes[?(@.index=="+plane+")].nodeName}")
	if err != nil {
		return err
	}
	cut := slices.IndexFunc(d.nodes, func(n *lab.Node) bool { return n.Name == node })
	to := slices.IndexFunc(d.pods[b], func(p workload.Pod) bool { return p.Node != node })
	if cut < 0 || to < 0 {
		return fmt.Errorf("found no gateway of %s in plane %q (%q), or no pod on another node", b.Name, plane, node)
	}
	title(fmt.Sprintf("%s carries what %s sends. It is cut off for %s", node, from, cutTime))
	known, err := d.known(ctx, b, a)
	if err != nil {
		return err
	}
	packets, connection, closeAll, err := d.call(ctx, from, known[d.pods[b][to].Name])
	if err != nil {
		return err
	}
	defer closeAll()
	if err := answered(ctx, packets); err != nil {
		return err
	}
	nft := func(ctx context.Context, script string) error {
		if out, err := d.nodes[cut].NetCommand(ctx, "nft", script).CombinedOutput(); err != nil {
			return fmt.Errorf("nft on %s: %w: %s", node, err, out)
		}
		return nil
	}
	if err := nft(ctx, "add table netdev demo-cut; "+
		"add chain netdev demo-cut in { type filter hook ingress device eth0 priority -500; policy drop; }; "+
		"add chain netdev demo-cut out { type filter hook egress device eth0 priority -500; policy drop; }"); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
	case <-time.After(cutTime):
	}
	if err := nft(context.WithoutCancel(ctx), "delete table netdev demo-cut"); err != nil {
		return err
	}
	if err := answered(ctx, packets); err != nil {
		return err
	}
	r := flow.End(packets)[0]
	stall, err := connection.End()
	if err != nil {
		return fmt.Errorf("the TCP connection has ended: %w", err)
	}
	fmt.Printf("%d of %d packets, one every %s, were lost: none was answered for %.2f s.\nA TCP connection stood still for %.2f s, and went on.\n",
		r.Lost, r.Sent, flow.Interval, r.Gap.Seconds(), stall.Seconds())
	return nil
}

// answered waits until the newest packets are answered.
func answered(ctx context.Context, f *flow.Flow) error {
	var missing string
	err := wait.PollUntilContextTimeout(ctx, flow.Interval, answerTimeout, true, func(context.Context) (bool, error) {
		missing = f.Unanswered(steady, time.Second)
		return missing == "", nil
	})
	if err != nil {
		return fmt.Errorf("%s: %s: %w", f.Name, missing, err)
	}
	return nil
}

// call has packets sent from inside of a pod to another one, and a TCP connection ask and answer at the same time.
func (d *demo) call(ctx context.Context, from workload.Pod, to netip.Addr) (packets *flow.Flow, connection *flow.Conversation, closeAll func(), err error) {
	path, err := from.NetworkNamespace("demo")
	if err != nil {
		return nil, nil, nil, err
	}
	ns, err := os.Open(path)
	if err != nil {
		return nil, nil, nil, err
	}
	defer ns.Close()
	var udp, tcp net.Conn
	err = enter.Do(ns, func() (err error) {
		if udp, err = net.Dial("udp", workload.Target("udp", to)); err == nil {
			tcp, err = net.DialTimeout("tcp", workload.Target("tcp", to), answerTimeout)
		}
		return err
	})
	closeAll = func() {
		for _, c := range []net.Conn{udp, tcp} {
			if c != nil {
				_ = c.Close()
			}
		}
	}
	if err != nil {
		closeAll()
		return nil, nil, nil, err
	}
	reader := bufio.NewReader(tcp)
	_, err = reader.ReadString('\n') // who it is
	if err == nil {
		packets, err = flow.Start(ctx, udp.(*net.UDPConn), from.String(), 8)
	}
	if err != nil {
		closeAll()
		return nil, nil, nil, err
	}
	question := strings.Repeat("0123456789abcdef", 8)
	answer := make([]byte, len(question))
	connection = flow.Converse(ctx, func() error {
		_, err := tcp.Write([]byte(question))
		if err == nil {
			_, err = io.ReadFull(reader, answer)
		}
		if err == nil && string(answer) != question {
			err = errors.New("the echo is not what was sent")
		}
		return err
	})
	return packets, connection, closeAll, nil
}
