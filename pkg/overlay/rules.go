package overlay

import (
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"go4.org/netipx"
	"golang.org/x/sys/unix"

	"github.com/liqonet/liqonet/pkg/link"
)

func (a *applier) readRules() error {
	for _, family := range families {
		rules, err := link.Dump(func() ([]netlink.Rule, error) { return a.kernel.conn.Handle.RuleList(family) })
		if err != nil && !lacks(family, err) {
			return fmt.Errorf("list rules: %w", err)
		}
		for _, r := range rules {
			// Those around our rules lead to no table.
			around := r.Table == 0 && (r.Priority == RulePriority-1 || r.Priority == RulePriority+1)
			switch {
			case r.Family != family || !isOurTable(r.Table) && !around:
			case r.Protocol == Protocol && (around || r.Priority == RulePriority):
				a.rules = append(a.rules, r)
			case !around:
				a.fail("foreign rule with our table %d: priority %d, protocol %d", r.Table, r.Priority, r.Protocol)
			}
		}
	}
	return nil
}

// wantedRules are the rules as the kernel has them: one for each family that has routes in
// the table, for IPv4 if there are none. Before them are those that jump over them. A jump
// needs a rule to land at, which does nothing.
func (a *applier) wantedRules() (out []netlink.Rule) {
	for _, source := range a.want.Bypass {
		jump, land := netlink.NewRule(), netlink.NewRule()
		jump.Family, jump.Priority, jump.Goto, jump.Protocol = netlink.FAMILY_V4, RulePriority-1, RulePriority+1, Protocol
		if source.Addr().Is6() {
			jump.Family = netlink.FAMILY_V6
		}
		jump.Src = netipx.PrefixIPNet(netip.PrefixFrom(source.Addr(), source.Addr().BitLen()))
		if source.Port() != 0 {
			jump.IPProto, jump.Sport = unix.IPPROTO_UDP, netlink.NewRulePortRange(source.Port(), source.Port())
		}
		land.Family, land.Priority, land.Protocol = jump.Family, RulePriority+1, Protocol
		if !contains(out, *land) {
			out = append(out, *land)
		}
		out = append(out, *jump)
	}
	for _, want := range a.want.Rules {
		has6, has4 := false, false
		for _, r := range a.want.Routes {
			has6 = has6 || r.Table == want.Table && r.Dst.Addr().Is6()
			has4 = has4 || r.Table == want.Table && r.Dst.Addr().Is4()
		}
		for _, family := range families {
			if family == netlink.FAMILY_V6 && has6 || family == netlink.FAMILY_V4 && (has4 || !has6) {
				rule := netlink.NewRule()
				rule.Family, rule.Priority, rule.Protocol = family, RulePriority, Protocol
				rule.Table, rule.IifName = want.Table, want.IIF
				out = append(out, *rule)
			}
		}
	}
	return out
}

func contains(rules []netlink.Rule, r netlink.Rule) bool {
	return slices.ContainsFunc(rules, func(o netlink.Rule) bool { return reflect.DeepEqual(r, o) })
}

func (a *applier) addRules() error {
	for _, rule := range a.wantedRules() {
		if contains(a.rules, rule) {
			continue
		}
		if rule.Table == 0 && rule.Goto < 0 {
			rule.Type = nl.FR_ACT_NOP // which the library does not read
		}
		if err := a.kernel.conn.Handle.RuleAdd(&rule); err != nil {
			a.fail("add rule %s: %w", describe(rule), err)
			a.allFailed = true
			continue
		}
		a.changed("added rule %s", describe(rule))
	}
	return nil
}

func (a *applier) removeRules() error {
	wanted := a.wantedRules()
	for _, rule := range a.rules {
		if contains(wanted, rule) {
			continue
		}
		if err := a.kernel.conn.Handle.RuleDel(&rule); err != nil && !errors.Is(err, unix.ENOENT) {
			a.failRemoval("remove rule %s: %w", describe(rule), err)
			continue
		}
		a.changed("removed rule %s", describe(rule))
	}
	return nil
}

// describe is close to what ip(8) prints.
func describe(r netlink.Rule) string {
	switch {
	case r.Goto >= 0 && r.Sport != nil:
		return fmt.Sprintf("%d: from %s udp sport %d goto %d", r.Priority, r.Src, r.Sport.Start, r.Goto)
	case r.Goto >= 0:
		return fmt.Sprintf("%d: from %s goto %d", r.Priority, r.Src, r.Goto)
	case r.Table == 0:
		return fmt.Sprintf("%d: nop", r.Priority)
	case r.IifName == "":
		return fmt.Sprintf("%d: lookup %d", r.Priority, r.Table)
	}
	return fmt.Sprintf("%d: iif %s lookup %d", r.Priority, r.IifName, r.Table)
}
