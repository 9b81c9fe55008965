package firewall

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// commentPrefix starts the comment of each rule that we put into chains of others.
const commentPrefix = "liqonet: "

// Config is what the chains of others on a node have to accept.
type Config struct {
	// OverlayPrefix is how the names of the overlay's interfaces start.
	OverlayPrefix string
	// OverlayPort is the UDP port of the overlay, TunnelPort that of the gateways' tunnels.
	OverlayPort, TunnelPort uint16
	// Gateways are those with an overlay link to this node.
	Gateways []Gateway
}

// Gateway is a gateway as seen from a node.
type Gateway struct {
	// Pod is the address of the gateway's pod, Overlay its address in the overlay.
	Pod, Overlay netip.Addr
	// Local says that the pod runs on this node.
	Local bool
}

func (c Config) validate() error {
	if c.OverlayPrefix == "" || c.OverlayPort == 0 || c.TunnelPort == 0 {
		return errors.New("accept rules: the overlay's prefix, its port or the tunnel's port is missing")
	}
	for _, g := range c.Gateways {
		if !g.Pod.Is4() || !g.Overlay.Is4() {
			return fmt.Errorf("accept rules: gateway %s, %s: only IPv4 is supported", g.Pod, g.Overlay)
		}
	}
	return nil
}

// EnsureAcceptRules makes the chains of others accept the packets of peers. These are:
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
func EnsureAcceptRules(ctx context.Context, c Config) (changed bool, err error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	if err := c.validate(); err != nil {
		return false, err
	}
	changed, owned, nftErr := ensureRules(c.rules())
	legacy, legacyErr := checkLegacy(c)
	if err := errors.Join(nftErr, legacyErr); err != nil {
		return changed, err
	}
	if len(owned)+len(legacy) > 0 {
		return changed, &BlockedError{Owned: owned, Legacy: legacy}
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
	// Owned are nftables chains that only the program that made them can change,
	// because their table has the flag owner: family, table and name of each.
	Owned []string
	// Legacy are chains of iptables-legacy, each with the rules that it lacks.
	Legacy []LegacyChain
}

// LegacyChain is a chain of iptables-legacy that drops what no rule accepts.
type LegacyChain struct {
	// Chain is FORWARD or INPUT.
	Chain string
	// Missing are the rules to add, as arguments of iptables.
	Missing []string
}

// Error names the chains, and what to do about them.
func (e *BlockedError) Error() string {
	var parts []string
	if len(e.Owned) > 0 {
		parts = append(parts, "nftables chain "+strings.Join(e.Owned, ", ")+" drops packets of peers, and only its owner can change it:"+
			" have that program accept interfaces lq*, and the UDP ports of overlay and tunnel between nodes and gateways;"+
			" with firewalld: NftablesTableOwner=no in /etc/firewalld/firewalld.conf, and restart it")
	}
	for _, l := range e.Legacy {
		var commands []string
		for _, rule := range l.Missing {
			commands = append(commands, "iptables-legacy -w -I "+l.Chain+" "+rule)
		}
		parts = append(parts, "iptables-legacy drops packets of peers in its chain "+l.Chain+" unless a rule accepts them; run on this node: "+
			strings.Join(commands, "; "))
	}
	return strings.Join(parts, "; ")
}

// hook is where a chain is attached, by the kernel's number.
type hook uint32

const (
	hookInput   hook = unix.NF_INET_LOCAL_IN
	hookForward hook = unix.NF_INET_FORWARD
)

// acceptHooks are the hooks with accept rules.
func acceptHooks() []hook { return []hook{hookInput, hookForward} }

// chain is the name of iptables' chain at the hook.
func (h hook) chain() string {
	if h == hookInput {
		return "INPUT"
	}
	return "FORWARD"
}

// acceptRule is a rule that accepts a kind of packets. An empty field matches
// anything.
type acceptRule struct {
	hook hook
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

// forHook returns the rules for one hook.
func forHook(h hook, rules []acceptRule) []acceptRule {
	return slices.DeleteFunc(slices.Clone(rules), func(r acceptRule) bool { return r.hook != h })
}

// comment identifies a rule: two rules with the same comment are the same.
func (r acceptRule) comment() string { return commentPrefix + r.what }

// rules returns all accept rules. Rules that match most packets come first.
func (c Config) rules() []acceptRule {
	var out []acceptRule
	for _, g := range c.Gateways {
		out = append(
			out,
			acceptRule{hook: hookInput, what: fmt.Sprintf("overlay from %s:%d", g.Pod, c.OverlayPort), src: g.Pod, dport: c.OverlayPort},
			acceptRule{hook: hookInput, what: fmt.Sprintf("ping from %s", g.Overlay), in: c.OverlayPrefix, src: g.Overlay, icmp: true},
		)
	}
	out = append(
		out,
		acceptRule{hook: hookForward, what: "from peers", in: c.OverlayPrefix},
		acceptRule{hook: hookForward, what: "to peers", out: c.OverlayPrefix},
	)
	for _, g := range c.Gateways {
		if !g.Local {
			continue
		}
		// Between the gateway and other nodes. Both directions have the same
		// destination port.
		out = append(
			out,
			acceptRule{hook: hookForward, what: fmt.Sprintf("overlay from %s:%d", g.Pod, c.OverlayPort), src: g.Pod, dport: c.OverlayPort},
			acceptRule{hook: hookForward, what: fmt.Sprintf("overlay to %s:%d", g.Pod, c.OverlayPort), dst: g.Pod, dport: c.OverlayPort},
		)
	}
	for _, g := range c.Gateways {
		// On every node: a NodePort of any node leads to the gateway.
		out = append(
			out,
			acceptRule{hook: hookForward, what: fmt.Sprintf("tunnel from %s:%d", g.Pod, c.TunnelPort), src: g.Pod, sport: c.TunnelPort},
			acceptRule{hook: hookForward, what: fmt.Sprintf("tunnel to %s:%d", g.Pod, c.TunnelPort), dst: g.Pod, dport: c.TunnelPort},
		)
	}
	return out
}

// isOurs says whether a comment is that of a rule of ours.
func isOurs(comment string) bool { return strings.HasPrefix(comment, commentPrefix) }
