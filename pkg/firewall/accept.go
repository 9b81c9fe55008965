package firewall

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/liqonet/liqonet/pkg/nat"
	"github.com/liqonet/liqonet/pkg/wire"
)

// commentPrefix starts the comment of each rule that we put into chains of others.
const commentPrefix = "liqonet: "

// EnsureAcceptRules makes the chains of others accept the packets of peers on a node whose own
// table is known. These are:
//
//   - at the hook forward, what comes from peers and goes to peers;
//   - at the hook forward, the overlay's packets of gateways on this node;
//   - at the hook forward, the tunnel's packets of all gateways;
//   - at the hook input, the overlay's packets from gateways;
//   - at the hook input, pings from gateways through the overlay.
//
// Only chains that drop what no rule accepts get rules. Either their policy is drop, or
// a rule drops or rejects every packet. That rule may be in a chain that they jump to. Ours
// stand just before it. Where a chain does not drop any more, ours are removed. It says
// whether it changed anything.
//
// It covers filter chains of the nftables families ip and inet, which includes
// iptables-nft and firewalld. The error is a [BlockedError] if everything is done but
// for chains that cannot be changed.
func EnsureAcceptRules(ctx context.Context, n nat.Node) (changed bool, err error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	changed, owned, nftErr := ensureRules(acceptRules(n))
	blocked, legacyErr := checkLegacy(n.OverlayPort)
	if err := errors.Join(nftErr, legacyErr); err != nil {
		return changed, err
	}
	if len(owned) > 0 {
		blocked = append(blocked, ownedAdvice(owned))
	}
	if len(blocked) > 0 {
		return changed, &BlockedError{blocked}
	}
	return changed, nil
}

// RemoveAcceptRules removes the rules of EnsureAcceptRules, and says whether there
// were any.
func RemoveAcceptRules(ctx context.Context) (changed bool, err error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	changed, _, err = ensureRules(nil)
	return changed, err
}

// BlockedError says that chains of others may drop packets of peers, and that they
// were not changed. Trying again is of no use before somebody else changes them.
type BlockedError struct {
	// Advice names the chains, and says what to do about them. They are chains of
	// iptables-legacy, or of nftables in a table with the flag owner. Such a table can be
	// changed only by the program that made it.
	Advice []string
}

// Error is all the advice.
func (e *BlockedError) Error() string { return strings.Join(e.Advice, "; ") }

// Hooks with accept rules.
const (
	hookInput   = nftables.ChainHook(unix.NF_INET_LOCAL_IN)
	hookForward = nftables.ChainHook(unix.NF_INET_FORWARD)
)

// iptablesChains are the names of iptables' chains at these hooks.
func iptablesChains() map[nftables.ChainHook]string {
	return map[nftables.ChainHook]string{hookInput: "INPUT", hookForward: "FORWARD"}
}

// acceptRule is a rule that accepts a kind of packets. An empty field matches
// anything.
type acceptRule struct {
	// what identifies it: two rules with the same text are the same.
	what string
	// in and out are how the names of interfaces start.
	in, out  string
	src, dst netip.Addr
	// sport and dport are UDP ports.
	sport, dport uint16
	// icmp restricts it to ICMP. Of ICMP only pings and answers get as far as the hook
	// input: our own table drops the rest.
	icmp bool
}

// acceptRules are those for each hook. Rules that match most packets come first.
func acceptRules(n nat.Node) map[nftables.ChainHook][]acceptRule {
	var input, local, tunnels []acceptRule
	for _, g := range n.Gateways {
		from := acceptRule{what: fmt.Sprintf("overlay from %s:%d", g.Pod, n.OverlayPort), src: g.Pod, dport: n.OverlayPort}
		input = append(input, from, acceptRule{what: fmt.Sprintf("ping from %s", g.Overlay), in: wire.LinkPrefix, src: g.Overlay, icmp: true})
		if g.Local {
			// Between the gateway and other nodes. Both directions have the same
			// destination port.
			to := acceptRule{what: fmt.Sprintf("overlay to %s:%d", g.Pod, n.OverlayPort), dst: g.Pod, dport: n.OverlayPort}
			local = append(local, from, to)
		}
		// On every node: a NodePort of any node leads to the gateway.
		tunnels = append(
			tunnels,
			acceptRule{what: fmt.Sprintf("tunnel from %s:%d", g.Pod, n.TunnelPort), src: g.Pod, sport: n.TunnelPort},
			acceptRule{what: fmt.Sprintf("tunnel to %s:%d", g.Pod, n.TunnelPort), dst: g.Pod, dport: n.TunnelPort},
		)
	}
	peers := []acceptRule{{what: "from peers", in: wire.LinkPrefix}, {what: "to peers", out: wire.LinkPrefix}}
	return map[nftables.ChainHook][]acceptRule{hookInput: input, hookForward: slices.Concat(peers, local, tunnels)}
}

// flagOwner of a table says that only the program that made it can change it (NFT_TABLE_F_OWNER).
const flagOwner = 0x2

// Blocked returns the advice of a [BlockedError], by reading only: before there are agents, too.
func Blocked(ctx context.Context, overlayPort uint16) (advice []string, err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	c := &nftables.Conn{}
	tables, err := c.ListTables()
	if err != nil {
		return nil, fmt.Errorf("list nftables tables: %w", err)
	}
	var owned []string
	err = eachChain(c, func(ch *nftables.Chain, name string) error {
		isOwned := slices.ContainsFunc(tables, func(t *nftables.Table) bool {
			return t.Name == ch.Table.Name && t.Family == ch.Table.Family && flagsOf(t)&flagOwner != 0
		})
		if !isOwned {
			return nil
		}
		rules, err := rulesOf(c, ch.Table, ch.Name)
		if err != nil {
			return err
		}
		_, drops, err := dropsAt(c, ch, rules)
		if drops {
			owned = append(owned, name)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	legacy, err := checkLegacy(overlayPort)
	slices.Sort(owned)
	if len(owned) > 0 {
		advice = append(advice, ownedAdvice(owned))
	}
	return append(advice, legacy...), err
}

// flagsOf are those of a table: the kernel writes them in network byte order, and the library reads them in the machine's.
func flagsOf(t *nftables.Table) uint32 {
	return binary.BigEndian.Uint32(binary.NativeEndian.AppendUint32(nil, t.Flags))
}

// ownedAdvice says what to do about chains that only their owner can change.
func ownedAdvice(owned []string) string {
	return "nftables chain " + strings.Join(owned, ", ") + " drops packets of peers, and only its owner can change it:" +
		" have that program accept interfaces " + wire.LinkPrefix + "*, and the UDP ports of overlay and tunnel between nodes and gateways;" +
		" with firewalld: NftablesTableOwner=no in /etc/firewalld/firewalld.conf, and restart it"
}
