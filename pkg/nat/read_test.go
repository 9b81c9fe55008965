package nat_test

import (
	"context"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"

	"github.com/samber/lo"

	"github.com/liqonet/liqonet/pkg/nat"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/netns"
)

// Administrators save a machine's rules with nft, and load them again. Firewall services do so at each boot. If nft
// cannot read one of our rules, it loads nothing of the file.
func TestNFTReadsTablesAgain(t *testing.T) {
	receive := func() (bool, error) {
		return nat.ApplyReceive(context.Background(), nat.Receive{Underlay: "eth0", Entry: "gro0in", Ports: []uint16{51840, 6094}})
	}
	empty := nat.Node{OverlayGroup: 1, Address: addr("10.80.0.1")}
	withoutGateways := func() (bool, error) { return nat.ApplyNode(context.Background(), empty) }
	for _, s := range append(subjects(), subject{"receive", receive, nil}, subject{"node without gateways", withoutGateways, nil}) {
		t.Run(s.name, func(t *testing.T) {
			ns, other := netns.New(t, "saved"), netns.New(t, "loaded")
			for _, n := range []*netns.NS{ns, other} {
				netns.Veth(t, n, "eth0", n, "gro0in")
			}
			netns.Expect(t, ns, true, "apply", s.apply)
			file := filepath.Join(t.TempDir(), "saved")
			ns.Output(t, "sh", "-c", "nft list ruleset > "+file)
			ns.Output(t, "nft", "-c", "-f", file)
			other.Output(t, "nft", "-f", file)
			kit.Check(t, "what nft has loaded", decimal(netns.Ruleset(t, other)), decimal(netns.Ruleset(t, ns)))
		})
	}
}

// decimal writes a ruleset's numbers with one base, and sets of one range like other sets: nft does not always write
// what it has read.
func decimal(ruleset string) string {
	ruleset = regexp.MustCompile(`0x[0-9a-f]+`).ReplaceAllStringFunc(ruleset, func(n string) string {
		v, err := strconv.ParseUint(n, 0, 64)
		return lo.Ternary(err == nil, strconv.FormatUint(v, 10), n)
	})
	return regexp.MustCompile(`(@th,\d+,32) (\d+-\d+)`).ReplaceAllString(ruleset, "$1 { $2 }")
}
