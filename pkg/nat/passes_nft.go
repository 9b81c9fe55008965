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

// passNFT puts what has to pass, of one address family, into the chains of nftables,
// and removes what is ours from those of the other one. Chains that only their owner
// can change are left as they are; owned are their names.
func passNFT(f family, want []pass, followed *Followed) (changed bool, owned []string, err error) {
	// Not a lasting connection: answers to what the kernel refuses may stay in it.
	c, err := nftables.New()
	if err != nil {
		return false, nil, fmt.Errorf("open nftables: %w", err)
	}
	looked := map[chainKey]bool{}
	for family, name := range map[nftables.TableFamily]string{
		nftables.TableFamilyIPv4: "ip", nftables.TableFamilyIPv6: "ip6", nftables.TableFamilyINet: "inet",
	} {
		passes := want
		if family != f.nft && family != nftables.TableFamilyINet {
			passes = nil
		}
		chains, err := listChains(c, family)
		if err != nil {
			return changed, nil, err
		}
		for _, ch := range chains {
			h, ok := hookOf(ch)
			if !ok || ch.Table.Name == TableName || ch.Table.Family != family {
				continue
			}
			queued, err := passChain(c, ch, f, at(h, passes), func(chain string) {
				key := chainKey{byte(family), ch.Table.Name, chain}
				looked[key] = true
				followed.add(key)
			})
			if err != nil {
				return changed, nil, err
			}
			if !queued {
				continue
			}
			// One by one: a chain that cannot be changed is no reason not to change others.
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
	followed.set(looked)
	slices.Sort(owned)
	return changed, owned, nil
}

// hookOf is the hook of a filter chain, if that is one with passes.
func hookOf(ch *nftables.Chain) (h hook, ok bool) {
	if ch.Table == nil || ch.Type != nftables.ChainTypeFilter || ch.Hooknum == nil {
		return 0, false
	}
	h = hook(*ch.Hooknum)
	return h, slices.Contains(passHooks(), h)
}

// isOwned says whether a table has the flag owner. One that is gone by now has not.
func isOwned(c *nftables.Conn, t *nftables.Table) bool {
	tables, err := c.ListTablesOfFamily(t.Family)
	return err == nil && slices.ContainsFunc(tables, func(have *nftables.Table) bool {
		return have.Name == t.Name && have.Flags&tableOwner != 0
	})
}

// tableOwner is NFT_TABLE_F_OWNER of linux/netfilter/nf_tables.h, in either byte
// order: the kernel gives it in the network's, the library takes it for the
// machine's.
const tableOwner = 0x2 | 0x2<<24

// passChain queues what makes one chain right. It tells which others it is about to
// look at.
func passChain(c *nftables.Conn, ch *nftables.Chain, f family, passes []pass, follow func(string)) (queued bool, err error) {
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
		follow(name)
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
			if loadsOnly(r.Exprs[i:]) {
				continue
			}
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

// loadsOnly says that what the first expression loads is not compared: so
// iptables-nft writes `-i +`, any interface, and firewalld ends its chains with it.
func loadsOnly(e []expr.Any) bool {
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
	iptables := ch.Table.Family != nftables.TableFamilyINet && ch.Table.Name == "filter" && ch.Name == p.hook.name()
	switch {
	case p.icmp:
		e = join(e, f.xtProto(f.icmp))
	case p.sport == 0 && p.dport == 0:
	case iptables:
		e = join(e, f.xtProto(unix.IPPROTO_UDP), []expr.Any{
			&expr.Match{Name: "udp", Info: &xt.Udp{SrcPorts: portRange(p.sport), DstPorts: portRange(p.dport)}},
		})
	default:
		e = join(e, p.ports())
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

func (p pass) ports() []expr.Any {
	e := proto(unix.IPPROTO_UDP)
	if p.sport != 0 {
		e = join(e, port(0, p.sport))
	}
	if p.dport != 0 {
		e = join(e, port(2, p.dport))
	}
	return e
}

// xtProto is as iptables writes `-p icmp`: `ip protocol icmp`, and with IPv6
// `meta l4proto`.
func (f family) xtProto(protocol byte) []expr.Any {
	if f.nft == nftables.TableFamilyIPv6 {
		return proto(protocol)
	}
	const offset = 9
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{protocol}},
	}
}

// portRange is one port, or all if it is 0.
func portRange(port uint16) [2]uint16 {
	if port == 0 {
		return [2]uint16{0, 0xffff}
	}
	return [2]uint16{port, port}
}
