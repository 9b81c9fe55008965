package firewall

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"golang.org/x/sys/unix"

	"github.com/liqonet/liqonet/pkg/nft"
)

// ensureRules puts the wanted rules into chains that drop, and removes all others of
// ours. It leaves chains alone that only their owner can change, and names them.
func ensureRules(want map[nftables.ChainHook][]acceptRule) (changed bool, owned []string, err error) {
	// Not a lasting connection: answers to what the kernel refuses may stay in it.
	c := &nftables.Conn{}
	// IPv4 packets pass the chains of both families.
	for family, name := range map[nftables.TableFamily]string{nftables.TableFamilyIPv4: "ip", nftables.TableFamilyINet: "inet"} {
		chains, err := nft.ListChains(c, family)
		if err != nil {
			return changed, nil, err
		}
		for _, ch := range chains {
			if ch.Table.Name == nft.TableName || ch.Type != nftables.ChainTypeFilter || iptablesChains()[*ch.Hooknum] == "" {
				continue
			}
			queued, err := ensureChain(c, ch, want[*ch.Hooknum])
			if err != nil {
				return changed, nil, err
			}
			// One by one: a chain that cannot be changed must not keep others as they are.
			err = c.Flush()
			if errors.Is(err, unix.EPERM) { // the table has the flag owner
				owned = append(owned, fmt.Sprintf("%s %s %s", name, ch.Table.Name, ch.Name))
				continue
			}
			if err != nil {
				return changed, nil, fmt.Errorf("change nftables chain %q of table %q: %w", ch.Name, ch.Table.Name, err)
			}
			changed = changed || queued
		}
	}
	slices.Sort(owned)
	return changed, owned, nil
}

// ensureChain queues what makes one chain right.
func ensureChain(c *nftables.Conn, ch *nftables.Chain, accept []acceptRule) (queued bool, err error) {
	rules, err := rulesOf(c, ch.Table, ch.Name)
	if err != nil {
		return false, err
	}
	// Of each rule the comment, if it is ours.
	var have []string
	var others []*nftables.Rule
	for _, r := range rules {
		comment := nft.DecodeComment(r.UserData)
		if !strings.HasPrefix(comment, commentPrefix) {
			comment = ""
			others = append(others, r)
		}
		have = append(have, comment)
	}
	policy := expr.VerdictAccept
	if *ch.Policy == nftables.ChainPolicyDrop {
		policy = expr.VerdictDrop
	}
	last, end, err := decide(others, policy, func(chain string) ([]*nftables.Rule, error) { return rulesOf(c, ch.Table, chain) })
	if err != nil {
		return false, err
	}
	if end != expr.VerdictDrop {
		accept = nil
	}
	var labels []string
	for _, a := range accept {
		labels = append(labels, nft.Label(commentPrefix+a.what, ch.Table.Family, a.exprs(ch)))
	}
	if slices.Equal(have, slices.Concat(make([]string, last), labels, make([]string, len(others)-last))) {
		return false, nil
	}
	for i, r := range rules {
		if have[i] == "" {
			continue
		}
		if err := c.DelRule(r); err != nil {
			return false, fmt.Errorf("remove rule of nftables chain %q: %w", ch.Name, err)
		}
	}
	for i, a := range accept {
		r := &nftables.Rule{Table: ch.Table, Chain: ch, Exprs: a.exprs(ch), UserData: nft.EncodeComment(labels[i])}
		if last < len(others) {
			r.Position = others[last].Handle
			c.InsertRule(r)
		} else {
			c.AddRule(r)
		}
	}
	return true, nil
}

func rulesOf(c *nftables.Conn, t *nftables.Table, chain string) ([]*nftables.Rule, error) {
	rules, err := c.GetRules(t, &nftables.Chain{Name: chain, Table: t})
	if err != nil {
		return nil, fmt.Errorf("list rules of nftables chain %q of table %q: %w", chain, t.Name, err)
	}
	return rules, nil
}

// decide returns the first rule that accepts or drops every packet that reaches it,
// and which of both it does. If there is none it returns the number of rules and the
// policy. It follows jumps by reading chains.
func decide(
	rules []*nftables.Rule, policy expr.VerdictKind, read func(chain string) ([]*nftables.Rule, error),
) (at int, end expr.VerdictKind, err error) {
	for i, r := range rules {
		switch v := always(r); v.Kind {
		case expr.VerdictAccept, expr.VerdictDrop:
			return i, v.Kind, nil
		case expr.VerdictReturn:
			return i, policy, nil
		case expr.VerdictJump, expr.VerdictGoto:
			target, err := read(v.Chain)
			if err != nil {
				return 0, 0, err
			}
			_, end, err := decide(target, expr.VerdictReturn, read)
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

// always says what a rule does with every IPv4 packet. A rule that is about some packets
// only lets all continue.
func always(r *nftables.Rule) expr.Verdict {
	conditional := expr.Verdict{Kind: expr.VerdictContinue}
	var loaded expr.MetaKey
	for _, e := range r.Exprs {
		switch e := e.(type) {
		case *expr.Counter, *expr.Log:
		case *expr.Match:
			if e.Name != "comment" {
				return conditional
			}
		case *expr.Meta:
			// It may be that nothing compares it. Iptables-nft writes `-i +`, any interface,
			// in this way, and firewalld ends its chains with it.
			if e.SourceRegister {
				return conditional
			}
			loaded = e.Key
		case *expr.Cmp:
			// `meta nfproto ipv4`
			if loaded != expr.MetaKeyNFPROTO || e.Op != expr.CmpOpEq || !slices.Equal(e.Data, []byte{unix.NFPROTO_IPV4}) {
				return conditional
			}
		case *expr.Reject:
			return expr.Verdict{Kind: expr.VerdictDrop}
		case *expr.Target:
			if e.Name == "REJECT" {
				return expr.Verdict{Kind: expr.VerdictDrop}
			}
			return conditional
		case *expr.Verdict:
			return *e
		default:
			return conditional
		}
	}
	return conditional
}

// exprs is the rule for a chain. In a chain of iptables every version of iptables-nft
// has to be able to list it: one that cannot read a rule refuses the whole table. So
// there is a counter before the verdict, and iptables' own match for ports.
func (a acceptRule) exprs(ch *nftables.Chain) []expr.Any {
	e := slices.Concat(interfacePrefix(expr.MetaKeyIIFNAME, a.in), interfacePrefix(expr.MetaKeyOIFNAME, a.out))
	if (a.src.IsValid() || a.dst.IsValid()) && ch.Table.Family == nftables.TableFamilyINet {
		e = append(e, nft.Equal(&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1}, []byte{unix.NFPROTO_IPV4})...)
	}
	const protocol, source, destination = 9, 12, 16 // offsets in the IPv4 header
	header := func(offset, length uint32, value []byte) []expr.Any {
		return nft.Equal(&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: length}, value)
	}
	if a.src.IsValid() {
		e = append(e, header(source, 4, a.src.AsSlice())...)
	}
	if a.dst.IsValid() {
		e = append(e, header(destination, 4, a.dst.AsSlice())...)
	}
	iptables := ch.Table.Family == nftables.TableFamilyIPv4 && ch.Table.Name == "filter" && ch.Name == iptablesChains()[*ch.Hooknum]
	switch {
	case a.icmp:
		e = append(e, header(protocol, 1, []byte{unix.IPPROTO_ICMP})...)
	case a.sport == 0 && a.dport == 0:
	case iptables:
		e = append(e, header(protocol, 1, []byte{unix.IPPROTO_UDP})...)
		e = append(e, &expr.Match{Name: "udp", Info: &xt.Udp{SrcPorts: portRange(a.sport), DstPorts: portRange(a.dport)}})
	default:
		e = append(e, nft.Equal(&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, []byte{unix.IPPROTO_UDP})...)
		for offset, port := range []uint16{a.sport, a.dport} {
			if port != 0 {
				e = append(e, nft.Equal(&expr.Payload{
					DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2 * uint32(offset), Len: 2,
				}, binary.BigEndian.AppendUint16(nil, port))...)
			}
		}
	}
	return append(e, &expr.Counter{}, &expr.Verdict{Kind: expr.VerdictAccept})
}

// interfacePrefix is `iifname "lq*"`. To readers of somebody else's chain a name says
// more than an interface group.
func interfacePrefix(key expr.MetaKey, name string) []expr.Any {
	if name == "" {
		return nil
	}
	return nft.Equal(&expr.Meta{Key: key, Register: 1}, []byte(name))
}

// portRange is one port, or all if it is 0.
func portRange(port uint16) [2]uint16 {
	if port == 0 {
		return [2]uint16{0, 0xffff}
	}
	return [2]uint16{port, port}
}
