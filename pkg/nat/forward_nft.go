package nat

import (
	"errors"
	"fmt"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"golang.org/x/sys/unix"
)

// forwardNFT puts what has to pass into the forward chains of nftables.
func forwardNFT(f family, want []pass) (changed bool, err error) {
	c, err := dial()
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, c.CloseLasting()) }()
	for _, family := range []nftables.TableFamily{nftables.TableFamilyIPv4, nftables.TableFamilyIPv6, nftables.TableFamilyINet} {
		passes := want
		if family != f.nft && family != nftables.TableFamilyINet {
			passes = nil
		}
		chains, err := c.ListChainsOfTableFamily(family)
		if err != nil {
			return false, fmt.Errorf("list nftables chains: %w", err)
		}
		for _, ch := range chains {
			if ch.Table == nil || ch.Table.Name == TableName || ch.Table.Family != family ||
				ch.Type != nftables.ChainTypeFilter || ch.Hooknum == nil || *ch.Hooknum != *nftables.ChainHookForward {
				continue
			}
			queued, err := forwardChain(c, ch, f, passes)
			if err != nil {
				return false, err
			}
			changed = changed || queued
		}
	}
	if err := c.Flush(); err != nil {
		return false, fmt.Errorf("change foreign forward chains: %w", err)
	}
	return changed, nil
}

// forwardChain queues what makes one chain right.
func forwardChain(c *nftables.Conn, ch *nftables.Chain, f family, passes []pass) (queued bool, err error) {
	rules, err := rulesOf(c, ch.Table, ch.Name)
	if err != nil {
		return false, err
	}
	ours := func(r *nftables.Rule) bool { return isPass(label(r.UserData)) }
	foreign := slices.DeleteFunc(slices.Clone(rules), ours)
	policy := accepts
	if ch.Policy != nil && *ch.Policy == nftables.ChainPolicyDrop {
		policy = drops
	}
	others := newRuleset(func(name string) ([]step, error) {
		rules, err := rulesOf(c, ch.Table, name)
		return steps(rules, f), err
	})
	tail, verdict, err := others.end(steps(foreign, f), policy)
	if err != nil {
		return false, err
	}
	var want []rule
	if verdict == drops {
		for _, p := range passes {
			want = append(want, p.rule(ch, f))
		}
	}
	var labels []string
	for _, w := range want {
		l, err := w.label(family{nft: ch.Table.Family})
		if err != nil {
			return false, err
		}
		labels = append(labels, l)
	}
	names := func(rules []*nftables.Rule) []string {
		var out []string
		for _, r := range rules {
			if ours(r) {
				out = append(out, label(r.UserData))
			} else {
				out = append(out, fmt.Sprint(r.Handle))
			}
		}
		return out
	}
	wanted := slices.Concat(names(foreign[:tail]), labels, names(foreign[tail:]))
	if slices.Equal(names(rules), wanted) {
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
	for i, w := range want {
		r := &nftables.Rule{Table: ch.Table, Chain: ch, Exprs: w.exprs, UserData: comment(labels[i])}
		if tail < len(foreign) {
			r.Position = foreign[tail].Handle
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

func steps(rules []*nftables.Rule, f family) []step {
	out := make([]step, len(rules))
	for i, r := range rules {
		out[i] = stepOf(r, f)
	}
	return out
}

// stepOf says what a rule does with every packet of an address family.
func stepOf(r *nftables.Rule, f family) step {
	for i := 0; i < len(r.Exprs); i++ {
		switch e := r.Exprs[i].(type) {
		case *expr.Counter, *expr.Log:
		case *expr.Match:
			if e.Name != "comment" {
				return step{}
			}
		case *expr.Meta:
			// `meta nfproto ipv4`
			if i+1 == len(r.Exprs) || e.Key != expr.MetaKeyNFPROTO {
				return step{}
			}
			if is, ok := r.Exprs[i+1].(*expr.Cmp); !ok || is.Op != expr.CmpOpEq || !slices.Equal(is.Data, []byte{byte(f.nft)}) {
				return step{}
			}
			i++
		case *expr.Reject:
			return step{kind: drops}
		case *expr.Target:
			if e.Name == "REJECT" {
				return step{kind: drops}
			}
			return step{}
		case *expr.Verdict:
			switch e.Kind {
			case expr.VerdictDrop:
				return step{kind: drops}
			case expr.VerdictAccept:
				return step{kind: accepts}
			case expr.VerdictReturn:
				return step{kind: returns}
			case expr.VerdictJump:
				return step{jumps, e.Chain}
			case expr.VerdictGoto:
				return step{goes, e.Chain}
			default:
				return step{}
			}
		default:
			return step{}
		}
	}
	return step{}
}

// rule is a pass for a chain. In that of iptables it has to be such as every
// version of iptables-nft can list: one that cannot read a rule refuses the whole
// table. So there is a counter before the verdict, and ports are matched by
// iptables' own match.
func (p pass) rule(ch *nftables.Chain, f family) rule {
	var e []expr.Any
	if p.in != "" {
		e = join(e, ifPrefix(expr.MetaKeyIIFNAME, p.in))
	}
	if p.out != "" {
		e = join(e, ifPrefix(expr.MetaKeyOIFNAME, p.out))
	}
	if (p.src.IsValid() || p.dst.IsValid()) && ch.Table.Family == nftables.TableFamilyINet {
		e = join(e, []expr.Any{
			&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{byte(f.nft)}},
		})
	}
	if p.src.IsValid() {
		e = join(e, f.isAddr(f.saddr, p.src))
	}
	if p.dst.IsValid() {
		e = join(e, f.isAddr(f.daddr, p.dst))
	}
	if p.sport != 0 || p.dport != 0 {
		e = join(e, p.ports(ch))
	}
	return rule{p.comment(), join(e, []expr.Any{&expr.Counter{}}, accept())}
}

// ifPrefix: `iifname "lq*"`. In the chains of others it tells more than a group.
func ifPrefix(key expr.MetaKey, name string) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: key, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte(name)},
	}
}

func (p pass) ports(ch *nftables.Chain) []expr.Any {
	e := proto(unix.IPPROTO_UDP)
	iptables := ch.Table.Family != nftables.TableFamilyINet && ch.Table.Name == "filter" && ch.Name == forwardChainName
	if !iptables {
		if p.sport != 0 {
			e = join(e, port(0, p.sport))
		}
		if p.dport != 0 {
			e = join(e, port(2, p.dport))
		}
		return e
	}
	if ch.Table.Family == nftables.TableFamilyIPv4 {
		const protocolOffset = 9
		e = []expr.Any{
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: protocolOffset, Len: 1},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_UDP}},
		}
	}
	return append(e, &expr.Match{Name: "udp", Info: &xt.Udp{SrcPorts: portRange(p.sport), DstPorts: portRange(p.dport)}})
}

// portRange is one port, or all if it is 0.
func portRange(port uint16) [2]uint16 {
	if port == 0 {
		return [2]uint16{0, 0xffff}
	}
	return [2]uint16{port, port}
}
