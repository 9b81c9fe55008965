package firewall

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"github.com/samber/lo"
	"golang.org/x/sys/unix"

	"github.com/liqonet/liqonet/pkg/nft"
	"github.com/liqonet/liqonet/pkg/wire"
)

// Foreign returns the names of chains and tables of others that have rules, in the calling thread's network namespace.
// In a gateway, where nobody else has any, they may redirect or drop packets of the peering.
func Foreign() ([]string, error) {
	names, err := findForeign(nftables.TableFamilyUnspecified, func(ch *nftables.Chain, rules []*nftables.Rule) []string {
		drops := ch.Policy != nil && *ch.Policy == nftables.ChainPolicyDrop
		if ch.Hooknum == nil || len(rules) == 0 && !drops {
			return nil
		}
		return []string{fmt.Sprintf("nftables chain %s %s", ch.Table.Name, ch.Name)}
	})
	if err != nil {
		return nil, err
	}
	legacy, err := usedLegacyTables()
	return append(slices.Compact(names), legacy...), err // families have chains of the same name
}

// findForeign returns what find returns for the chains of others of a family, or of all families, in alphabetical order.
func findForeign(family nftables.TableFamily, find func(ch *nftables.Chain, rules []*nftables.Rule) []string) (found []string, err error) {
	// Not a lasting connection: replies about refused messages may stay in it.
	c := &nftables.Conn{}
	chains, err := nft.ListChains(c, family)
	if err != nil {
		return nil, err
	}
	for _, ch := range chains {
		if ch.Table.Name == nft.TableName {
			continue
		}
		rules, err := rulesOf(c, ch.Table, ch.Name)
		if err != nil {
			return nil, err
		}
		found = append(found, find(ch, rules)...)
	}
	slices.Sort(found)
	return found, nil
}

// usedLegacyTables returns the tables of iptables-legacy that have rules, or a chain whose policy is to drop. Without
// rules, a table has one entry for the policy of each of its chains, and one at the end.
func usedLegacyTables() (names []string, err error) {
	tables, err := legacyTables()
	if err != nil {
		return nil, err
	}
	empty := map[string]uint32{"filter": 4, "nat": 5, "mangle": 6, "raw": 3, "security": 4}
	for _, table := range slices.Sorted(slices.Values(tables)) {
		info, entries, err := readLegacy(table)
		if err != nil {
			return nil, fmt.Errorf("read the table %s of iptables-legacy: %w", table, err)
		}
		drops := func(hook int) bool {
			return info.Hooks&(1<<hook) != 0 && legacyRuleAt(entries, info.Policy[hook]).verdict == legacyDrop
		}
		if info.Count > lo.ValueOr(empty, table, 0) || slices.ContainsFunc(lo.Range(hooksCount), drops) {
			names = append(names, "iptables-legacy table "+table)
		}
	}
	return names, nil
}

// PartialDrops describes the rules of others that drop some of the packets of gateways or peers. These come from or go to
// one of the peers' ranges, by an interface of the overlay, or to the overlay's UDP port. It knows rules that compare
// with one value, in nftables and in chains of iptables-nft, and no sets.
func PartialDrops(ranges []netip.Prefix, overlayPort uint16) (out []string, err error) {
	for family, name := range map[nftables.TableFamily]string{nftables.TableFamilyIPv4: "ip", nftables.TableFamilyINet: "inet"} {
		found, err := findForeign(family, func(ch *nftables.Chain, rules []*nftables.Rule) (drops []string) {
			for _, r := range rules {
				if what := matchOfDrop(r.Exprs, ranges, overlayPort); what != "" {
					drops = append(drops, fmt.Sprintf("nftables chain %s %s %s: %s", name, ch.Table.Name, ch.Name, what))
				}
			}
			return drops
		})
		if err != nil {
			return nil, err
		}
		out = append(out, found...)
	}
	return slices.Compact(slices.Sorted(slices.Values(out))), nil
}

// matchOfDrop returns which packets of ours a rule drops, empty if none.
func matchOfDrop(exprs []expr.Any, ranges []netip.Prefix, overlayPort uint16) (what string) {
	if !lo.ContainsBy(exprs, drops) {
		return ""
	}
	isUDP := lo.ContainsBy(exprs, func(e expr.Any) bool {
		protocol, is := e.(*expr.Cmp)
		return is && protocol.Op == expr.CmpOpEq && slices.Equal(protocol.Data, []byte{unix.IPPROTO_UDP})
	})
	var load expr.Any
	var mask []byte
	for _, e := range exprs {
		switch e := e.(type) {
		case *expr.Payload, *expr.Meta:
			load, mask = e, nil
		case *expr.Bitwise:
			mask = e.Mask
		case *expr.Match:
			if udp, is := e.Info.(*xt.Udp); is && udp.InvFlags == 0 && udp.DstPorts[0] <= overlayPort && overlayPort <= udp.DstPorts[1] && udp.DstPorts != portRange(0) {
				what = fmt.Sprintf("UDP port %d", overlayPort)
			}
		case *expr.Cmp:
			if e.Op == expr.CmpOpEq {
				what = cmp.Or(what, describeMatch(load, mask, e.Data, ranges, lo.Ternary(isUDP, overlayPort, 0)))
			}
		}
	}
	return what
}

func drops(e expr.Any) bool {
	switch e := e.(type) {
	case *expr.Verdict:
		return e.Kind == expr.VerdictDrop
	case *expr.Reject:
		return true
	case *expr.Target:
		return e.Name == "REJECT"
	}
	return false
}

// describeMatch returns which packets of ours have this value in a field, empty if none.
func describeMatch(load expr.Any, mask, value []byte, ranges []netip.Prefix, overlayPort uint16) string {
	const source, destination, addressLength, destinationPort = 12, 16, 4, 2
	switch l := load.(type) {
	case *expr.Meta:
		name := strings.TrimRight(string(value), "\x00")
		if (l.Key == expr.MetaKeyIIFNAME || l.Key == expr.MetaKeyOIFNAME) && strings.HasPrefix(name, wire.LinkPrefix) {
			return "interface " + name
		}
	case *expr.Payload:
		if l.Base == expr.PayloadBaseTransportHeader && l.Offset == destinationPort && slices.Equal(value, binary.BigEndian.AppendUint16(nil, overlayPort)) {
			return fmt.Sprintf("port %d", overlayPort)
		}
		if l.Base != expr.PayloadBaseNetworkHeader || l.Offset != source && l.Offset != destination || l.Len > addressLength || len(value) > addressLength {
			return ""
		}
		length := 8 * len(value)
		if mask != nil {
			length, _ = net.IPMask(mask).Size()
		}
		address := netip.AddrFrom4([addressLength]byte(append(slices.Clone(value), make([]byte, addressLength-len(value))...)))
		if p := netip.PrefixFrom(address, length); length > 0 && slices.ContainsFunc(ranges, p.Overlaps) {
			return lo.Ternary(l.Offset == source, "from ", "to ") + p.String()
		}
	}
	return ""
}
