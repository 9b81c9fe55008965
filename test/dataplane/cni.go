package dataplane

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/liqonet/liqonet/test/netns"
)

// Service is a translation of NodePorts as by kube-proxy.
type Service struct {
	// Proto is the number of an IP protocol.
	Proto  byte
	Port   uint16
	To     netip.Addr
	ToPort uint16
}

// CNI configures a node as CNIs and kube-proxy do. Not all of them masquerade.
func CNI(t testing.TB, ns *netns.NS, pods netip.Prefix, services []Service, masquerade bool) {
	t.Helper()
	ns.Do(t, func() error {
		c := &nftables.Conn{}
		table := c.AddTable(&nftables.Table{Name: "cni", Family: nftables.TableFamilyIPv4})
		chain := func(name string, typ nftables.ChainType, hook *nftables.ChainHook, prio *nftables.ChainPriority) *nftables.Chain {
			return c.AddChain(&nftables.Chain{Name: name, Table: table, Type: typ, Hooknum: hook, Priority: prio})
		}
		if masquerade {
			post := chain("postrouting", nftables.ChainTypeNAT, nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource)
			c.AddRule(&nftables.Rule{Table: table, Chain: post, Exprs: join(
				inPrefix(12, pods, expr.CmpOpEq), inPrefix(16, pods, expr.CmpOpNeq), []expr.Any{&expr.Masq{FullyRandom: true}})})
			c.AddRule(&nftables.Rule{Table: table, Chain: post, Exprs: join(
				inPrefix(12, pods, expr.CmpOpNeq), inPrefix(16, pods, expr.CmpOpEq), []expr.Any{&expr.Masq{FullyRandom: true}})})
		}
		// Packets that are not between pods are forwarded only if a service has translated them.
		policy := nftables.ChainPolicyDrop
		forward := c.AddChain(&nftables.Chain{
			Name: "forward", Table: table, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookForward,
			Priority: nftables.ChainPriorityFilter, Policy: &policy,
		})
		c.AddRule(&nftables.Rule{Table: table, Chain: forward, Exprs: []expr.Any{
			&expr.Ct{Key: expr.CtKeySTATE, Register: 1},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: native32(expr.CtStateBitINVALID)},
			&expr.Verdict{Kind: expr.VerdictDrop},
		}})
		c.AddRule(&nftables.Rule{Table: table, Chain: forward, Exprs: join(
			inPrefix(12, pods, expr.CmpOpEq), inPrefix(16, pods, expr.CmpOpEq), []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}})})
		pre := chain("prerouting", nftables.ChainTypeNAT, nftables.ChainHookPrerouting, nftables.ChainPriorityNATDest)
		out := chain("output", nftables.ChainTypeNAT, nftables.ChainHookOutput, nftables.ChainPriorityNATDest)
		for _, s := range services {
			for _, ch := range []*nftables.Chain{pre, out} {
				c.AddRule(&nftables.Rule{Table: table, Chain: ch, Exprs: s.exprs()})
			}
		}
		return c.Flush()
	})
}

// AcceptForward makes the network plugin's table of a node accept everything at forward.
func AcceptForward() error {
	c, policy := &nftables.Conn{}, nftables.ChainPolicyAccept
	c.AddChain(&nftables.Chain{
		Name: "forward", Table: &nftables.Table{Name: "cni", Family: nftables.TableFamilyIPv4}, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter, Policy: &policy,
	})
	return c.Flush()
}

// Masquerade hides the sources in a range from everything outside it, in a separate table.
func Masquerade(t testing.TB, ns *netns.NS, sources netip.Prefix) {
	t.Helper()
	ns.Do(t, func() error {
		c := &nftables.Conn{}
		table := c.AddTable(&nftables.Table{Name: "masquerade", Family: nftables.TableFamilyIPv4})
		chain := c.AddChain(&nftables.Chain{
			Name: "postrouting", Table: table, Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource,
		})
		c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: join(
			inPrefix(12, sources, expr.CmpOpEq), inPrefix(16, sources, expr.CmpOpNeq), []expr.Any{&expr.Masq{FullyRandom: true}})})
		return c.Flush()
	})
}

func (s Service) exprs() []expr.Any {
	return []expr.Any{
		&expr.Fib{Register: 1, FlagDADDR: true, ResultADDRTYPE: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: native32(unix.RTN_LOCAL)},
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{s.Proto}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binary.BigEndian.AppendUint16(nil, s.Port)},
		&expr.Immediate{Register: 1, Data: s.To.AsSlice()},
		&expr.Immediate{Register: 2, Data: binary.BigEndian.AppendUint16(nil, s.ToPort)},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: 1, RegProtoMin: 2, Specified: true},
	}
}

func inPrefix(offset uint32, p netip.Prefix, op expr.CmpOp) []expr.Any {
	mask := binary.BigEndian.AppendUint32(nil, ^uint32(0)<<(32-p.Bits()))
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: 4},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: mask, Xor: make([]byte, 4)},
		&expr.Cmp{Op: op, Register: 1, Data: p.Masked().Addr().AsSlice()},
	}
}

func native32(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }

func join(parts ...[]expr.Any) []expr.Any { return slices.Concat(parts...) }
