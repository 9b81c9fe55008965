// Package firewall lets the packets of peers pass the filter chains of others on a node: those of firewalld, Docker,
// kube-proxy, network plugins and administrators.
//
// A packet that one chain drops cannot be accepted by another chain, at any priority. So [EnsureAcceptRules] changes
// chains at the hooks input and forward that drop packets that no rule accepts. It inserts accept rules before the
// drop. It does not affect other rules of those chains, such as network policies. Each accept rule is identified by its
// comment. [Monitor] signals when to check again.
//
// Chains that cannot be changed in this way are reported in a [BlockedError]: those of tables that belong to one
// program, and of iptables-legacy.
//
// Out of scope: our own tables (package nat), IPv6, and chains at other hooks.
package firewall

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"
	"unsafe"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"github.com/samber/lo"
	"golang.org/x/sys/unix"

	"github.com/liqonet/liqonet/pkg/nat"
	"github.com/liqonet/liqonet/pkg/nft"
	"github.com/liqonet/liqonet/pkg/notify"
	"github.com/liqonet/liqonet/pkg/wire"
)

// commentPrefix starts the comment of each rule that we add to chains of others.
const commentPrefix = "liqonet: "

// EnsureAcceptRules makes the chains of others accept the packets of peers on a node, given the node's own table. These
// are:
//
//   - at the hook forward, packets from peers and to peers;
//   - at the hook forward, overlay packets of gateways on this node;
//   - at the hook forward, tunnel packets of all gateways;
//   - at the hook input, overlay packets from gateways;
//   - at the hook input, pings from gateways through the overlay.
//
// Only chains that drop packets that no rule accepts get these rules. Either their policy is drop, or a rule drops or
// rejects every packet, possibly in a chain that they jump to. Our rules are inserted just before that rule. If a chain
// no longer drops, our rules are removed. EnsureAcceptRules reports whether it changed anything.
//
// It covers filter chains of the nftables families ip and inet, which include iptables-nft and firewalld. The error is
// a [BlockedError] if everything is done except for chains that cannot be changed.
func EnsureAcceptRules(n nat.Node) (changed bool, err error) {
	changed, owned, nftErr := ensureRules(acceptRules(n))
	advice, legacyErr := checkLegacy(n.OverlayPort)
	if err := errors.Join(nftErr, legacyErr); err != nil {
		return changed, err
	}
	if advice = append(advice, ownedAdvice(owned)...); len(advice) > 0 {
		return changed, &BlockedError{advice}
	}
	return changed, nil
}

// RemoveAcceptRules removes the rules of EnsureAcceptRules, and reports whether there were any.
func RemoveAcceptRules() (changed bool, err error) {
	changed, _, err = ensureRules(nil)
	return changed, err
}

// BlockedError means that chains of others may drop packets of peers, and were not changed. Retrying is useless until
// someone changes them.
type BlockedError struct {
	// Advice names the chains, and says how to change them. They are chains of iptables-legacy, or of nftables in a
	// table with the flag owner, which only the program that created it can change.
	Advice []string
}

// Error returns all the advice.
func (e *BlockedError) Error() string { return strings.Join(e.Advice, "; ") }

// acceptRule accepts one kind of packets. An empty field matches anything.
type acceptRule struct {
	// text identifies the rule: two rules with the same text are the same.
	text string
	// in and out are prefixes of interface names.
	in, out  string
	src, dst netip.Addr
	// sport and dport are UDP ports, or the first ones of a range: see wire.EndOfRange.
	sport, dport uint16
	// icmp restricts the rule to ICMP. At the hook input, the only ICMP packets are pings and replies: our own table
	// drops the others.
	icmp bool
}

// acceptRules returns the rules for each hook. Rules that match most packets come first.
func acceptRules(n nat.Node) map[nftables.ChainHook][]acceptRule {
	var input, local, tunnels []acceptRule
	for _, g := range n.Gateways {
		from := acceptRule{text: fmt.Sprintf("overlay from %s:%d", g.Pod, n.OverlayPort), src: g.Pod, dport: n.OverlayPort}
		input = append(input, from, acceptRule{text: fmt.Sprintf("ping from %s", g.Overlay), in: wire.LinkPrefix, src: g.Overlay, icmp: true})
		if g.Local {
			// Packets between the gateway and other nodes have the same destination port in both directions.
			to := acceptRule{text: fmt.Sprintf("overlay to %s:%d", g.Pod, n.OverlayPort), dst: g.Pod, dport: n.OverlayPort}
			local = append(local, from, to)
		}
		// On every node, because a NodePort of any node leads to the gateway.
		tunnels = append(
			tunnels,
			acceptRule{text: fmt.Sprintf("tunnel from %s:%d", g.Pod, n.TunnelPort), src: g.Pod, sport: n.TunnelPort},
			acceptRule{text: fmt.Sprintf("tunnel to %s:%d", g.Pod, n.TunnelPort), dst: g.Pod, dport: n.TunnelPort},
		)
	}
	peers := []acceptRule{{text: "from peers", in: wire.LinkPrefix}, {text: "to peers", out: wire.LinkPrefix}}
	return map[nftables.ChainHook][]acceptRule{hookInput: input, hookForward: slices.Concat(peers, local, tunnels)}
}

// Blocked returns the advice of a [BlockedError]. It only reads, and does not need agents.
func Blocked(overlayPort uint16) (advice []string, err error) {
	var owned []string
	err = eachChain(func(_ *nftables.Conn, f foreignChain) error {
		if f.owned && f.drops {
			owned = append(owned, f.label)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	legacy, err := checkLegacy(overlayPort)
	return append(ownedAdvice(owned), legacy...), err
}

// ownedAdvice returns how to change chains that only their owner can change, if there are any.
func ownedAdvice(owned []string) []string {
	if len(owned) == 0 {
		return nil
	}
	slices.Sort(owned)
	return []string{"nftables chain " + strings.Join(owned, ", ") + " drops packets of peers, and only its owner can change it:" +
		" have that program accept interfaces " + wire.LinkPrefix + "*, and the UDP ports of overlay and tunnel between nodes and gateways;" +
		" with firewalld: NftablesTableOwner=no in /etc/firewalld/firewalld.conf, and restart it"}
}

// ensureRules adds the wanted rules to chains that drop, and removes our other rules. It returns the chains that only
// their owner can change, and does not change them.
func ensureRules(want map[nftables.ChainHook][]acceptRule) (changed bool, owned []string, err error) {
	err = eachChain(func(c *nftables.Conn, f foreignChain) error {
		var accept []acceptRule
		if f.drops {
			accept = want[*f.Hooknum]
		}
		switch {
		case f.hasRules(accept):
			return nil
		case f.owned:
			owned = append(owned, f.label)
			return nil
		}
		// One by one, because a chain that cannot be changed must not prevent the changes of others.
		if err := f.replace(c, accept); err != nil {
			return fmt.Errorf("change nftables chain %q of table %q: %w", f.Name, f.Table.Name, err)
		}
		changed = true
		return nil
	})
	return changed, owned, err
}

// foreignChain is a chain of others, at a hook with accept rules.
type foreignChain struct {
	*nftables.Chain
	// label is the name that users know the chain by.
	label string
	// owned is true if only the chain's owner can change it.
	owned bool
	// rules are all rules of the chain. For each one, ownComments has the comment if the rule is ours, otherwise "".
	rules       []*nftables.Rule
	ownComments []string
	// others are the rules of others, and last is the index of the first of them that decides on every packet, or their
	// number. Packets are dropped there if drops is true.
	others []*nftables.Rule
	last   int
	drops  bool
}

// eachChain reads chains of others, and calls fn for each. IPv4 packets pass the chains of both families.
func eachChain(fn func(c *nftables.Conn, f foreignChain) error) error {
	// Not a lasting connection: replies about refused messages may stay in it.
	c := &nftables.Conn{}
	tables, err := c.ListTables()
	if err != nil {
		return fmt.Errorf("list nftables tables: %w", err)
	}
	for family, name := range map[nftables.TableFamily]string{nftables.TableFamilyIPv4: "ip", nftables.TableFamilyINet: "inet"} {
		chains, err := nft.ListChains(c, family)
		if err != nil {
			return err
		}
		for _, ch := range chains {
			if ch.Table.Name == nft.TableName || ch.Type != nftables.ChainTypeFilter || iptablesChains()[*ch.Hooknum] == "" {
				continue
			}
			f := foreignChain{Chain: ch, label: fmt.Sprintf("%s %s %s", name, ch.Table.Name, ch.Name)}
			f.owned = slices.ContainsFunc(tables, func(t *nftables.Table) bool {
				return t.Name == ch.Table.Name && t.Family == family && nft.IsOwned(t)
			})
			if err := f.read(c); err != nil {
				return err
			}
			if err := fn(c, f); err != nil {
				return err
			}
		}
	}
	return nil
}

func (f *foreignChain) read(c *nftables.Conn) (err error) {
	if f.rules, err = rulesOf(c, f.Table, f.Name); err != nil {
		return err
	}
	for _, r := range f.rules {
		comment := nft.DecodeComment(r.UserData)
		if !strings.HasPrefix(comment, commentPrefix) {
			comment = ""
			f.others = append(f.others, r)
		}
		f.ownComments = append(f.ownComments, comment)
	}
	policy := lo.Ternary(*f.Policy == nftables.ChainPolicyDrop, expr.VerdictDrop, expr.VerdictAccept)
	at, end, err := decide(c, f.Table, f.others, policy)
	f.last, f.drops = at, end == expr.VerdictDrop
	return err
}

// comment returns the comment of a rule of ours in the chain.
func (f *foreignChain) comment(a acceptRule) string {
	return nft.Label(commentPrefix+a.text, f.Table.Family, a.exprs(f.Chain))
}

// hasRules reports whether exactly these rules of ours are in the chain, before the rule that decides.
func (f *foreignChain) hasRules(accept []acceptRule) bool {
	comments := lo.Map(accept, func(a acceptRule, _ int) string { return f.comment(a) })
	return slices.Equal(f.ownComments, slices.Concat(make([]string, f.last), comments, make([]string, len(f.others)-f.last)))
}

// replace replaces our rules with these.
func (f *foreignChain) replace(c *nftables.Conn, accept []acceptRule) error {
	for i, r := range f.rules {
		if f.ownComments[i] == "" {
			continue
		}
		if err := c.DelRule(r); err != nil {
			return fmt.Errorf("remove rule: %w", err)
		}
	}
	for _, a := range accept {
		comment := nft.EncodeComment(f.comment(a))
		r := &nftables.Rule{Table: f.Table, Chain: f.Chain, Exprs: a.exprs(f.Chain), UserData: comment}
		if f.last < len(f.others) {
			r.Position = f.others[f.last].Handle
			c.InsertRule(r)
		} else {
			c.AddRule(r)
		}
	}
	return c.Flush()
}

func rulesOf(c *nftables.Conn, t *nftables.Table, chain string) ([]*nftables.Rule, error) {
	rules, err := c.GetRules(t, &nftables.Chain{Name: chain, Table: t})
	if err != nil {
		return nil, fmt.Errorf("list rules of nftables chain %q of table %q: %w", chain, t.Name, err)
	}
	return rules, nil
}

// decide returns the index of the first rule that accepts or drops every packet that reaches it, and its verdict. If
// there is none, it returns the number of rules and the policy. It follows jumps to other chains of the table.
func decide(c *nftables.Conn, t *nftables.Table, rules []*nftables.Rule, policy expr.VerdictKind) (at int, end expr.VerdictKind, _ error) {
	for i, r := range rules {
		switch v := unconditionalVerdict(r); v.Kind {
		case expr.VerdictAccept, expr.VerdictDrop:
			return i, v.Kind, nil
		case expr.VerdictReturn:
			return i, policy, nil
		case expr.VerdictJump, expr.VerdictGoto:
			target, err := rulesOf(c, t, v.Chain)
			if err != nil {
				return 0, 0, err
			}
			_, end, err := decide(c, t, target, expr.VerdictReturn)
			if err != nil || end != expr.VerdictReturn {
				return i, end, err
			}
			if v.Kind == expr.VerdictGoto {
				return i, policy, nil
			}
		}
	}
	return len(rules), policy, nil
}

// unconditionalVerdict returns the verdict of a rule for every IPv4 packet. It is "continue" for a rule that matches
// only some packets.
func unconditionalVerdict(r *nftables.Rule) expr.Verdict {
	conditional, drops := expr.Verdict{Kind: expr.VerdictContinue}, expr.Verdict{Kind: expr.VerdictDrop}
	var loaded expr.MetaKey
	for _, e := range r.Exprs {
		isForAll := false
		switch e := e.(type) {
		case *expr.Counter, *expr.Log:
			isForAll = true
		case *expr.Match:
			isForAll = e.Name == "comment"
		case *expr.Meta:
			// Possibly nothing compares it. Iptables-nft writes `-i +`, any interface, in this way, and firewalld ends
			// its chains with it.
			isForAll, loaded = !e.SourceRegister, e.Key
		case *expr.Cmp:
			// `meta nfproto ipv4`
			isForAll = loaded == expr.MetaKeyNFPROTO && e.Op == expr.CmpOpEq && slices.Equal(e.Data, []byte{unix.NFPROTO_IPV4})
		case *expr.Reject:
			return drops
		case *expr.Target:
			if e.Name == "REJECT" {
				return drops
			}
		case *expr.Verdict:
			return *e
		}
		if !isForAll {
			return conditional
		}
	}
	return conditional
}

// exprs returns the rule for a chain. Every version of iptables-nft has to be able to list a rule in a chain of
// iptables: if it cannot read one, it refuses the whole table. So there is a counter before the verdict, and iptables'
// own match for ports.
func (a acceptRule) exprs(ch *nftables.Chain) (e []expr.Any) {
	match := func(wanted bool, parts ...expr.Any) {
		if wanted {
			e = append(e, parts...)
		}
	}
	// A name, `iifname "loq*"`, is easier to understand in a chain of others than an interface group.
	match(a.in != "", nft.Meta(expr.MetaKeyIIFNAME, []byte(a.in)...)...)
	match(a.out != "", nft.Meta(expr.MetaKeyOIFNAME, []byte(a.out)...)...)
	addresses := a.src.IsValid() || a.dst.IsValid()
	match(addresses && ch.Table.Family == nftables.TableFamilyINet, nft.Meta(expr.MetaKeyNFPROTO, unix.NFPROTO_IPV4)...)
	const protocol, source, destination = 9, 12, 16 // offsets in the IPv4 header
	match(a.src.IsValid(), nft.Equal(nft.IPHeader(source, 4), a.src.AsSlice())...)
	match(a.dst.IsValid(), nft.Equal(nft.IPHeader(destination, 4), a.dst.AsSlice())...)
	match(a.icmp, nft.Equal(nft.IPHeader(protocol, 1), []byte{unix.IPPROTO_ICMP})...)
	if a.sport != 0 || a.dport != 0 {
		iptables := ch.Table.Family == nftables.TableFamilyIPv4 && ch.Table.Name == "filter" && ch.Name == iptablesChains()[*ch.Hooknum]
		match(iptables, nft.Equal(nft.IPHeader(protocol, 1), []byte{unix.IPPROTO_UDP})...)
		match(iptables, &expr.Match{Name: "udp", Info: &xt.Udp{SrcPorts: portRange(a.sport), DstPorts: portRange(a.dport)}})
		match(!iptables, nft.Meta(expr.MetaKeyL4PROTO, unix.IPPROTO_UDP)...)
		match(!iptables && a.sport != 0, nft.Port(0, a.sport, wire.EndOfRange(a.sport))...)
		match(!iptables && a.dport != 0, nft.Port(2, a.dport, wire.EndOfRange(a.dport))...)
	}
	return append(e, &expr.Counter{}, &expr.Verdict{Kind: expr.VerdictAccept})
}

// portRange returns the range that begins with a port, or that of all ports if it is 0.
func portRange(port uint16) [2]uint16 {
	return lo.Ternary(port == 0, [2]uint16{0, 0xffff}, [2]uint16{port, wire.EndOfRange(port)})
}

// settleTime is how long chains and rules must not have changed before a signal. Firewalld runs a program for each of
// its steps, all of them within 0.6 s. The wait, and so the number of signals, is bounded by settleLongest: kube-proxy
// never stops making changes where services come and go.
const settleTime, settleLongest = 300 * time.Millisecond, time.Second

// Monitor signals when accept rules may be missing, or no longer needed. That is after others have changed nftables
// chains or rules in the calling thread's network namespace, and have finished. There is at most about one signal per
// second. After a loss of notifications there is also a signal. The subscription ends with ctx. Changes of
// iptables-legacy are not signaled, because the kernel sends no notifications of them.
func Monitor(ctx context.Context, settled notify.Signal) error {
	changed := notify.NewSignal()
	go settle(ctx, changed, settled)
	// Tables, chains and rules have the lowest numbers. Elements of sets change most often, and no chain drops because
	// of them.
	return nft.Subscribe(ctx, changed, func(typ int, table string) bool { return table != nft.TableName && typ <= unix.NFT_MSG_DELRULE })
}

// settle signals when nothing has changed for a while after a change. A firewall is loaded in many transactions. A
// change of ours between them would be lost with the next one. It may also make the loading fail: ebtables-restore
// 1.8.9 (nf_tables), one step of firewalld's reload, fails if anything else in nftables changes between its read and
// its transaction.
func settle(ctx context.Context, changed <-chan struct{}, settled notify.Signal) {
	var quiet, longest <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-changed:
			if quiet = time.After(settleTime); longest == nil {
				longest = time.After(settleLongest)
			}
			continue
		case <-quiet:
		case <-longest:
		}
		quiet, longest = nil, nil
		settled.Send()
	}
}

// iptables-legacy cannot be accessed with nftables: the kernel reads and writes its tables as a whole, with socket
// options. This package only reads them. The kernel's layout is in linux/netfilter_ipv4/ip_tables.h and
// linux/netfilter/x_tables.h: entries follow each other, in native byte order. The kernel has checked all sizes in
// them.
const (
	legacyTable = "filter"
	// legacyNames lists the tables that exist in the network namespace. Only these may be requested: a request for
	// another table creates it and loads its module.
	legacyNames = "/proc/thread-self/net/ip_tables_names"

	// Socket options of level IPPROTO_IP.
	getInfo    = 64
	getEntries = 65

	hooksCount = 5
	nameLength = 32
	// extensionLength is the length of the header of a match or target, which has a size, a name and a revision.
	extensionLength = 32

	// Verdicts of the standard target, whose name is empty. Verdicts of jumps are not negative.
	legacyDrop, legacyAccept, legacyReturn = -1, -2, -5
)

// legacyInfo is struct ipt_getinfo.
type legacyInfo struct {
	Name          [nameLength]byte
	Hooks         uint32
	First, Policy [hooksCount]uint32
	Count, Size   uint32
}

// legacyPackets describes the packets that a rule applies to, apart from its matches (struct ipt_ip). The mask of an
// interface's name is significant: `-i +` is a name without a mask.
type legacyPackets struct {
	Src, Dst, SrcMask, DstMask uint32
	In, Out, InMask, OutMask   [unix.IFNAMSIZ]byte
	Protocol                   uint16
	Flags, Inverted            uint8
}

// legacyEntry is a rule or a policy, which is also a rule (struct ipt_entry).
type legacyEntry struct {
	legacyPackets
	_            uint32
	Target, Next uint16
	_            [20]byte // the hooks, and counters
}

// legacyTables returns the tables of iptables-legacy that exist.
func legacyTables() ([]string, error) {
	names, err := os.ReadFile(legacyNames)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil // the kernel's module is not loaded
	}
	if err != nil {
		return nil, fmt.Errorf("list the tables of iptables-legacy: %w", err)
	}
	return strings.Fields(string(names)), nil
}

// checkLegacy returns the rules that are missing in chains of iptables-legacy that drop packets that no rule accepts.
// There are none if iptables-legacy is not in use.
func checkLegacy(overlayPort uint16) (advice []string, err error) {
	names, err := legacyTables()
	if err != nil || !slices.Contains(names, legacyTable) {
		return nil, err
	}
	info, entries, err := readLegacy(legacyTable)
	if err != nil {
		return nil, fmt.Errorf("read the table %s of iptables-legacy: %w", legacyTable, err)
	}
	for _, h := range []nftables.ChainHook{hookInput, hookForward} {
		chain := iptablesChains()[h]
		commands := lo.Map(missingRules(overlayPort, h, info, entries), func(rule string, _ int) string {
			return "iptables-legacy -w -I " + chain + " " + rule
		})
		if len(commands) > 0 {
			advice = append(advice, "iptables-legacy drops packets of peers in its chain "+chain+
				" unless a rule accepts them; run on this node: "+strings.Join(commands, "; "))
		}
	}
	return advice, nil
}

// readLegacy reads a table of the calling thread's network namespace. It needs only CAP_NET_ADMIN. The error is
// EAGAIN if another process changes the table at the same time.
func readLegacy(table string) (info legacyInfo, entries []byte, err error) {
	if info, err = legacyInfoOf(table); err != nil {
		return info, nil, err
	}
	const header = nameLength + 8 // struct ipt_get_entries
	b := make([]byte, header+int(info.Size))
	binary.NativeEndian.PutUint32(b[nameLength:], info.Size)
	return info, b[header:], legacyOption(getEntries, table, b)
}

// legacyInfoOf reads the number of a table's entries, which does not need the entries.
func legacyInfoOf(table string) (info legacyInfo, err error) {
	b := make([]byte, binary.Size(info))
	if err := legacyOption(getInfo, table, b); err != nil {
		return info, err
	}
	_, err = binary.Decode(b, binary.NativeEndian, &info)
	return info, err
}

// legacyOption reads a socket option about a table into value, which begins with the table's name.
func legacyOption(option uintptr, table string, value []byte) (err error) {
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open a socket: %w", err)
	}
	defer func() { err = errors.Join(err, unix.Close(socket)) }()
	copy(value, table)
	size := uint32(len(value))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(socket), unix.IPPROTO_IP, option,
		uintptr(unsafe.Pointer(&value[0])), uintptr(unsafe.Pointer(&size)), 0)
	return lo.Ternary[error](errno != 0, errno, nil)
}

// missingRules returns the rules that a chain lacks. A rule that names the overlay's interfaces or port, and accepts,
// counts as present, whatever else it matches. Chains that others jump to are not checked.
func missingRules(overlayPort uint16, h nftables.ChainHook, info legacyInfo, entries []byte) (missing []string) {
	prefix := []byte(wire.LinkPrefix)
	in, other := "-i "+wire.LinkPrefix+"+ -j ACCEPT", "-o "+wire.LinkPrefix+"+ -j ACCEPT"
	if h == hookInput {
		other = fmt.Sprintf("-p udp --dport %d -j ACCEPT", overlayPort)
	}
	missing = []string{in, other}
	// The last rule is the policy.
	for at := info.First[h]; ; {
		r := legacyRuleAt(entries, at)
		at += uint32(r.Next)
		switch {
		case r.always && (r.target == "REJECT" || r.verdict == legacyDrop):
			return missing
		case r.always && r.verdict == legacyAccept:
			return nil
		case r.always && r.verdict == legacyReturn:
			at = info.Policy[h]
		case r.verdict == legacyAccept:
			if bytes.HasPrefix(r.In[:], prefix) {
				missing = lo.Without(missing, in)
			}
			if h == hookForward && bytes.HasPrefix(r.Out[:], prefix) ||
				h == hookInput && r.firstPort <= overlayPort && overlayPort <= r.lastPort {
				missing = lo.Without(missing, other)
			}
		}
	}
}

// legacyRule is a decoded rule.
type legacyRule struct {
	legacyEntry
	// always is true if the rule applies to every packet.
	always bool
	// firstPort and lastPort are the UDP destination ports that it matches.
	firstPort, lastPort uint16
	target              string
	// verdict is that of the standard target, 0 for other targets.
	verdict int32
}

func legacyRuleAt(entries []byte, at uint32) (r legacyRule) {
	b := entries[at:]
	length, _ := binary.Decode(b, binary.NativeEndian, &r.legacyEntry)
	packets := r.legacyPackets
	packets.In, packets.Out, packets.Flags = [unix.IFNAMSIZ]byte{}, [unix.IFNAMSIZ]byte{}, 0
	r.always = packets == legacyPackets{}
	for m := b[length:r.Target]; len(m) > 0; m = m[native16(m):] {
		switch legacyName(m) {
		case "comment":
		case "udp": // struct xt_udp
			r.firstPort, r.lastPort = native16(m[extensionLength+4:]), native16(m[extensionLength+6:])
		default:
			r.always = false
		}
	}
	if r.target = legacyName(b[r.Target:]); r.target == "" {
		r.verdict = int32(binary.NativeEndian.Uint32(b[r.Target+extensionLength:]))
	}
	return r
}

// legacyName returns the name of a match or target.
func legacyName(b []byte) string {
	name, _, _ := bytes.Cut(b[2:extensionLength-1], []byte{0})
	return string(name)
}

func native16(b []byte) uint16 { return binary.NativeEndian.Uint16(b) }

// Hooks with accept rules.
const (
	hookInput   = nftables.ChainHook(unix.NF_INET_LOCAL_IN)
	hookForward = nftables.ChainHook(unix.NF_INET_FORWARD)
)

// iptablesChains returns the names of iptables' chains at these hooks.
func iptablesChains() map[nftables.ChainHook]string {
	return map[nftables.ChainHook]string{hookInput: "INPUT", hookForward: "FORWARD"}
}
