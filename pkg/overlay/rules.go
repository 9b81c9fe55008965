package overlay

import (
	"errors"
	"fmt"
	"reflect"
	"slices"

	"github.com/vishvananda/netlink"
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
			switch {
			case r.Family != family || !isOurTable(r.Table):
			case r.Priority != RulePriority || r.Protocol != Protocol:
				a.fail("foreign rule with our table %d: priority %d, protocol %d", r.Table, r.Priority, r.Protocol)
			default:
				a.rules = append(a.rules, r)
			}
		}
	}
	return nil
}

// wantedRules are the rules as the kernel has them: one for each family that has routes in
// the table, for IPv4 if there are none.
func (a *applier) wantedRules() (out []netlink.Rule) {
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
	if r.IifName == "" {
		return fmt.Sprintf("%d: lookup %d", r.Priority, r.Table)
	}
	return fmt.Sprintf("%d: iif %s lookup %d", r.Priority, r.IifName, r.Table)
}
