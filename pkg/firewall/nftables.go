package firewall

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"golang.org/x/sys/unix"

	"github.com/liqonet/liqonet/pkg/nft"
)

// ensureRules puts the wanted rules into chains that drop, and removes all others of
// ours. It leaves chains alone that only their owner can change, and names them.
func ensureRules(want []acceptRule) (changed bool, owned []string, err error) {
	// Not a lasting connection: answers to what the kernel refuses may stay in it.
	c, err := nftables.New()
	if err != nil {
		return false, nil, fmt.Errorf("open nftables: %w", err)
	}
	for family, name := range families() {
		chains, err := nft.ListChains(c, family)
		if err != nil {
			return changed, nil, err
		}
		for _, ch := range chains {
			h, ok := hookOf(ch)
			if !ok || ch.Table.Family != family {
				continue
			}
			queued, err := ensureChain(c, ch, forHook(h, want))
			if err != nil {
				return changed, nil, err
			}
			if !queued {
				continue
			}
			// One by one: a chain that cannot be changed must not keep others as they are.
			err = c.Flush()
			if errors.Is(err, unix.EPERM) && isOwned(c, ch.Table) {
				owned = append(owned, fmt.Sprintf("%s %s %s", name, ch.Table.Name, ch.Name))
				continue
			}
			if err != nil {
				return changed, nil, fmt.Errorf("change nftables chain %q of table %q: %w", ch.Name, ch.Table.Name, err)
			}
			changed = true
		}
	}
	slices.Sort(owned)
	return changed, owned, nil
}

// families are those of chains that IPv4 packets pass.
func families() map[nftables.TableFamily]string {
	return map[nftables.TableFamily]string{nftables.TableFamilyIPv4: "ip", nftables.TableFamilyINet: "inet"}
}

// hookOf returns the hook of a filter chain of others, if it is one with accept rules.
func hookOf(ch *nftables.Chain) (h hook, ok bool) {
	if ch.Table == nil || ch.Table.Name == nft.TableName || ch.Type != nftables.ChainTypeFilter || ch.Hooknum == nil {
		return 0, false
	}
	h = hook(*ch.Hooknum)
	return h, slices.Contains(acceptHooks(), h)
}

// isOwned says whether a table has the flag owner. One that is gone by now has not.
func isOwned(c *nftables.Conn, t *nftables.Table) bool {
	tables, err := c.ListTablesOfFamily(t.Family)
	return err == nil && slices.ContainsFunc(tables, func(have *nftables.Table) bool {
		return have.Name == t.Name && have.Flags&tableOwner != 0
	})
}

// tableOwner is NFT_TABLE_F_OWNER of linux/netfilter/nf_tables.h in both byte orders:
// the kernel sends the network's, the library reads it as the machine's.
const tableOwner = 0x2 | 0x2<<24

// ensureChain queues what makes one chain right.
func ensureChain(c *nftables.Conn, ch *nftables.Chain, accept []acceptRule) (queued bool, err error) {
	rules, err := rulesOf(c, ch.Table, ch.Name)
	if err != nil {
		return false, err
	}
	ours := func(r *nftables.Rule) bool { return isOurs(nft.DecodeComment(r.UserData)) }
	others := slices.DeleteFunc(slices.Clone(rules), ours)
	policy := accepts
	if ch.Policy != nil && *ch.Policy == nftables.ChainPolicyDrop {
		policy = drops
	}
	last, v, err := newEvaluator(func(name string) ([]step, error) {
		rules, err := rulesOf(c, ch.Table, name)
		return steps(rules), err
	}).decides(steps(others), policy)
	if err != nil {
		return false, err
	}
	if v != drops {
		accept = nil
	}
	var exprs [][]expr.Any
	var labels []string
	for _, a := range accept {
		e := a.exprs(ch)
		l, err := nft.Label(a.comment(), ch.Table.Family, e)
		if err != nil {
			return false, err
		}
		exprs, labels = append(exprs, e), append(labels, l)
	}
	names := func(rules []*nftables.Rule) []string {
		var out []string
		for _, r := range rules {
			if ours(r) {
				out = append(out, nft.DecodeComment(r.UserData))
			} else {
				out = append(out, fmt.Sprint(r.Handle))
			}
		}
		return out
	}
	if slices.Equal(names(rules), slices.Concat(names(others[:last]), labels, names(others[last:]))) {
		return false, nil
	}
	for _, r := range rules {
		if ours(r) {
			r.Table, r.Chain = ch.Table, ch
			if err := c.DelRule(r); err != nil {
				return false, fmt.Errorf("remove rule of nftables chain %q: %w", ch.Name, err)
			}
		}
	}
	for i, e := range exprs {
		r := &nftables.Rule{Table: ch.Table, Chain: ch, Exprs: e, UserData: nft.EncodeComment(labels[i])}
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

func steps(rules []*nftables.Rule) []step {
	out := make([]step, len(rules))
	for i, r := range rules {
		out[i] = stepOf(r)
	}
	return out
}

// stepOf says what a rule does with every IPv4 packet.
func stepOf(r *nftables.Rule) step {
	for i := 0; i < len(r.Exprs); i++ {
		switch e := r.Exprs[i].(type) {
		case *expr.Counter, *expr.Log:
		case *expr.Match:
			if e.Name != "comment" {
				return step{}
			}
		case *expr.Meta:
			if isUnused(r.Exprs[i:]) {
				continue
			}
			// `meta nfproto ipv4`
			if i+1 == len(r.Exprs) || e.Key != expr.MetaKeyNFPROTO {
				return step{}
			}
			if cmp, ok := r.Exprs[i+1].(*expr.Cmp); !ok || cmp.Op != expr.CmpOpEq || !slices.Equal(cmp.Data, []byte{unix.NFPROTO_IPV4}) {
				return step{}
			}
			i++
		case *expr.Reject:
			return step{verdict: drops}
		case *expr.Target:
			if e.Name == "REJECT" {
				return step{verdict: drops}
			}
			return step{}
		case *expr.Verdict:
			switch e.Kind {
			case expr.VerdictDrop:
				return step{verdict: drops}
			case expr.VerdictAccept:
				return step{verdict: accepts}
			case expr.VerdictReturn:
				return step{verdict: returns}
			case expr.VerdictJump:
				return step{jumps, e.Chain}
			case expr.VerdictGoto:
				return step{gotos, e.Chain}
			default:
				return step{}
			}
		default:
			return step{}
		}
	}
	return step{}
}

// isUnused says that nothing compares what the first expression loads. iptables-nft
// writes `-i +`, any interface, in this way, and firewalld ends its chains with it.
func isUnused(e []expr.Any) bool {
	if e[0].(*expr.Meta).SourceRegister || len(e) == 1 {
		return false
	}
	switch next := e[1].(type) {
	case *expr.Counter, *expr.Verdict, *expr.Reject, *expr.Target:
		return true
	case *expr.Meta:
		return !next.SourceRegister
	default:
		return false
	}
}

// exprs is the rule for a chain. In a chain of iptables every version of iptables-nft
// has to be able to list it: one that cannot read a rule refuses the whole table. So
// there is a counter before the verdict, and iptables' own match for ports.
func (a acceptRule) exprs(ch *nftables.Chain) []expr.Any {
	e := slices.Concat(interfacePrefix(expr.MetaKeyIIFNAME, a.in), interfacePrefix(expr.MetaKeyOIFNAME, a.out))
	if (a.src.IsValid() || a.dst.IsValid()) && ch.Table.Family == nftables.TableFamilyINet {
		e = append(e, compare(&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1}, []byte{unix.NFPROTO_IPV4})...)
	}
	const protocol, source, destination = 9, 12, 16 // offsets in the IPv4 header
	header := func(offset, length uint32, value []byte) []expr.Any {
		return compare(&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: length}, value)
	}
	if a.src.IsValid() {
		e = append(e, header(source, 4, a.src.AsSlice())...)
	}
	if a.dst.IsValid() {
		e = append(e, header(destination, 4, a.dst.AsSlice())...)
	}
	iptables := ch.Table.Family == nftables.TableFamilyIPv4 && ch.Table.Name == "filter" && ch.Name == a.hook.chain()
	switch {
	case a.icmp:
		e = append(e, header(protocol, 1, []byte{unix.IPPROTO_ICMP})...)
	case a.sport == 0 && a.dport == 0:
	case iptables:
		e = append(e, header(protocol, 1, []byte{unix.IPPROTO_UDP})...)
		e = append(e, &expr.Match{Name: "udp", Info: &xt.Udp{SrcPorts: portRange(a.sport), DstPorts: portRange(a.dport)}})
	default:
		e = append(e, compare(&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, []byte{unix.IPPROTO_UDP})...)
		for offset, port := range []uint16{a.sport, a.dport} {
			if port != 0 {
				e = append(e, compare(&expr.Payload{
					DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2 * uint32(offset), Len: 2,
				}, binary.BigEndian.AppendUint16(nil, port))...)
			}
		}
	}
	return append(e, &expr.Counter{}, &expr.Verdict{Kind: expr.VerdictAccept})
}

// compare compares what an expression loads into register 1.
func compare(load expr.Any, value []byte) []expr.Any {
	return []expr.Any{load, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: value}}
}

// interfacePrefix is `iifname "lq*"`. To readers of somebody else's chain a name says
// more than an interface group.
func interfacePrefix(key expr.MetaKey, name string) []expr.Any {
	if name == "" {
		return nil
	}
	return compare(&expr.Meta{Key: key, Register: 1}, []byte(name))
}

// portRange is one port, or all if it is 0.
func portRange(port uint16) [2]uint16 {
	if port == 0 {
		return [2]uint16{0, 0xffff}
	}
	return [2]uint16{port, port}
}
