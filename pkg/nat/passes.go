package nat

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// passComment starts the comment of the rules that we put into chains of
// others, by which they are found again.
const passComment = "liqonet: "

// EnsurePasses has forward chains of others accept what comes from and goes to
// peers, the overlay's packets of gateways on this node, and the tunnel's
// packets of all gateways, and input chains of others what gateways send to this
// node: the overlay's packets, and pings inside of it. A verdict of drop cannot be
// overruled from our own table, at any priority. Therefore, and only where a chain
// would drop (its policy is drop, or it ends with a rule that drops or rejects
// everything, be it in a chain that it jumps to), rules are put at its end, before
// that last rule, with a comment: all that the chain decides on by other rules,
// such as network policies, stays decided. Where no chain would drop any more, ours
// are removed. It says whether anything had to be changed.
//
// It covers filter chains of the nftables families inet and ip, or ip6 (those of
// iptables-nft, firewalld and others), and the chains INPUT and FORWARD of
// iptables-legacy, which the kernel keeps elsewhere. Those of ip6tables-legacy are
// not covered. The error is an [OwnedError]
// if all is done but what the kernel lets nobody do.
//
// followed, which may be nil, are for Monitor: chains that are jumped to.
func EnsurePasses(ctx context.Context, n Node, followed *Followed) (changed bool, err error) {
	if err := n.validate(n.family()); err != nil {
		return false, err
	}
	if n.TunnelPort == 0 {
		return false, errors.New("have others let packets pass: the tunnel's port is missing")
	}
	return ensurePasses(ctx, n.family(), n.passes(), followed)
}

// RemovePasses removes the rules of EnsurePasses, and says whether there were
// any.
func RemovePasses(ctx context.Context) (changed bool, err error) {
	return ensurePasses(ctx, ipv4(), nil, nil)
}

func ensurePasses(ctx context.Context, f family, want []pass, followed *Followed) (changed bool, err error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	nft, owned, nftErr := passNFT(f, want, followed)
	if f.nft != nftables.TableFamilyIPv4 {
		want = nil
	}
	legacy, legacyErr := passLegacy(ctx, want)
	if err = errors.Join(nftErr, legacyErr); err == nil && len(owned) > 0 {
		err = &OwnedError{owned}
	}
	return nft || legacy, err
}

// OwnedError says that chains of others drop what has to pass, in nftables tables
// that only the program that made them can change (flag owner). To try again is
// of no use before they have changed.
type OwnedError struct {
	// Chains are family, table and name of each.
	Chains []string
}

func (e *OwnedError) Error() string {
	return "nftables chain " + strings.Join(e.Chains, ", ") + " drops packets of peers, and only its owner can change it:" +
		" have that program accept interfaces lq*, and the UDP ports of overlay and tunnel between nodes and gateways;" +
		" with firewalld: NftablesTableOwner=no in /etc/firewalld/firewalld.conf, and restart it"
}

// hook is where a chain is, as nftables and iptables-legacy number it.
type hook uint32

const (
	hookInput   hook = unix.NF_INET_LOCAL_IN
	hookForward hook = unix.NF_INET_FORWARD
)

// passHooks are those with passes.
func passHooks() []hook { return []hook{hookInput, hookForward} }

// name is that of the chain of iptables.
func (h hook) name() string {
	if h == hookInput {
		return "INPUT"
	}
	return "FORWARD"
}

// pass is a kind of packets that others have to let pass. What is empty may be
// anything.
type pass struct {
	hook hook
	what string
	// in and out are how the names of interfaces start.
	in, out  string
	src, dst netip.Addr
	// sport and dport are UDP ports.
	sport, dport uint16
	// icmp is for ICMP only. Of that only pings and answers get as far as the hook
	// input, see isolate.
	icmp bool
}

// at are the passes at a hook.
func at(h hook, passes []pass) []pass {
	return slices.DeleteFunc(slices.Clone(passes), func(p pass) bool { return p.hook != h })
}

// comment is what the pass's rule is found by. Two passes with the same comment
// are the same.
func (p pass) comment() string { return passComment + p.what }

// passes are in the order in which most packets are found soonest.
func (n Node) passes() []pass {
	var out []pass
	for _, g := range n.Gateways {
		out = append(
			out,
			pass{hook: hookInput, what: fmt.Sprintf("overlay from %s:%d", g.Outer, n.OverlayPort), src: g.Outer, dport: n.OverlayPort},
			pass{hook: hookInput, what: fmt.Sprintf("ping from %s", g.Overlay), in: n.OverlayPrefix, src: g.Overlay, icmp: true},
		)
	}
	out = append(
		out,
		pass{hook: hookForward, what: "from peers", in: n.OverlayPrefix},
		pass{hook: hookForward, what: "to peers", out: n.OverlayPrefix},
	)
	for _, g := range n.Gateways {
		if !g.Local {
			continue
		}
		// Between the gateway and other nodes. Both directions have the same
		// destination port.
		out = append(
			out,
			pass{hook: hookForward, what: fmt.Sprintf("overlay from %s:%d", g.Outer, n.OverlayPort), src: g.Outer, dport: n.OverlayPort},
			pass{hook: hookForward, what: fmt.Sprintf("overlay to %s:%d", g.Outer, n.OverlayPort), dst: g.Outer, dport: n.OverlayPort},
		)
	}
	for _, g := range n.Gateways {
		// Also on other nodes: a NodePort leads from any node to the gateway.
		out = append(
			out,
			pass{hook: hookForward, what: fmt.Sprintf("tunnel from %s:%d", g.Outer, n.TunnelPort), src: g.Outer, sport: n.TunnelPort},
			pass{hook: hookForward, what: fmt.Sprintf("tunnel to %s:%d", g.Outer, n.TunnelPort), dst: g.Outer, dport: n.TunnelPort},
		)
	}
	return out
}

// isPass says whether a comment is that of a rule of ours.
func isPass(comment string) bool { return strings.HasPrefix(comment, passComment) }

// verdictKind is what a rule does with every packet.
type verdictKind int

const (
	// conditional rules do not decide on every packet; nothing is known of them.
	conditional verdictKind = iota
	accepts
	drops
	returns
	jumps
	goes
)

// step is what is known of a rule. chain is where a rule leads to that jumps or
// goes.
type step struct {
	kind  verdictKind
	chain string
}

// ruleset are the rules of chains that others jump to.
type ruleset struct {
	chain func(name string) ([]step, error)
	// ends are those of chains that are known already, so that each is looked at
	// once. A chain that is being looked at counts as one that returns: the kernel
	// has no loops.
	ends map[string]verdictKind
}

func newRuleset(chain func(string) ([]step, error)) *ruleset {
	return &ruleset{chain, map[string]verdictKind{}}
}

// end returns the first rule by which every packet that gets there is accepted
// or dropped, and which of them; after the last one the policy decides.
func (r *ruleset) end(steps []step, policy verdictKind) (at int, verdict verdictKind, err error) {
	for i, s := range steps {
		switch s.kind {
		case conditional:
		case accepts, drops:
			return i, s.kind, nil
		case returns:
			return i, policy, nil
		case jumps, goes:
			verdict, err := r.endOf(s.chain)
			if err != nil {
				return 0, 0, err
			}
			switch {
			case verdict != returns:
				return i, verdict, nil
			case s.kind == goes:
				return i, policy, nil
			}
		}
	}
	return len(steps), policy, nil
}

// endOf says what becomes of every packet in a chain.
func (r *ruleset) endOf(chain string) (verdictKind, error) {
	if verdict, ok := r.ends[chain]; ok {
		return verdict, nil
	}
	r.ends[chain] = returns
	steps, err := r.chain(chain)
	if err != nil {
		return 0, err
	}
	_, verdict, err := r.end(steps, returns)
	r.ends[chain] = verdict
	return verdict, err
}
