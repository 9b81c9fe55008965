package overlay

import (
	"errors"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/liqonet/liqonet/pkg/link"
)

func (a *applier) readRules() error {
	a.rules = nil
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		rules, err := link.Dump(func() ([]netlink.Rule, error) { return a.kernel.conn.Handle.RuleList(family) })
		if family == netlink.FAMILY_V6 && (errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP)) {
			continue
		}
		if err != nil {
			a.failed("list rules: %w", err)
			return errIncomplete
		}
		for _, r := range rules {
			if r.Family != family || !isOurTable(r.Table) {
				continue
			}
			if r.Priority != RulePriority || r.Protocol != Protocol {
				a.failed("foreign rule with our table %d: priority %d, protocol %d", r.Table, r.Priority, r.Protocol)
				continue
			}
			a.rules = append(a.rules, r)
		}
	}
	return nil
}

// families returns those that have routes in a table, IPv4 if there are none.
func (a *applier) families(table int) []int {
	var out []int
	for _, r := range a.want.Routes {
		family := netlink.FAMILY_V4
		if r.Dst.Addr().Is6() {
			family = netlink.FAMILY_V6
		}
		if r.Table == table && !slices.Contains(out, family) {
			out = append(out, family)
		}
	}
	if len(out) == 0 {
		out = append(out, netlink.FAMILY_V4)
	}
	return out
}

// matches says whether a rule of the kernel is the wanted one and no more.
func matches(want Rule, have netlink.Rule) bool {
	return have.Table == want.Table && have.IifName == want.IIF && plain(have)
}

// plain says that a rule has no selector that no rule of ours has.
func plain(r netlink.Rule) bool {
	return r.Src == nil && r.Dst == nil && r.OifName == "" && r.Mark == 0 && r.Mask == nil && !r.Invert &&
		r.Tos == 0 && r.IPProto == 0 && r.Sport == nil && r.Dport == nil && r.UIDRange == nil && r.Goto < 0 &&
		r.TunID == 0 && r.SuppressPrefixlen < 0 && r.SuppressIfgroup < 0
}

func (a *applier) addRules() error {
	for _, want := range a.want.Rules {
		for _, family := range a.families(want.Table) {
			if slices.ContainsFunc(a.rules, func(r netlink.Rule) bool { return r.Family == family && matches(want, r) }) {
				continue
			}
			rule := netlink.NewRule()
			rule.Family, rule.Priority, rule.Protocol = family, RulePriority, Protocol
			rule.Table, rule.IifName = want.Table, want.IIF
			if err := a.kernel.conn.Handle.RuleAdd(rule); err != nil {
				a.failed("add rule %s: %w", want, err)
				a.allFailed = true
				continue
			}
			a.changed("added", "rule "+want.String(), "")
		}
	}
	return nil
}

func (a *applier) removeRules() error {
	for _, have := range a.rules {
		wanted := slices.ContainsFunc(a.want.Rules, func(w Rule) bool {
			return matches(w, have) && slices.Contains(a.families(w.Table), have.Family)
		})
		if wanted {
			continue
		}
		if err := a.kernel.conn.Handle.RuleDel(&have); err != nil && !errors.Is(err, unix.ENOENT) {
			a.failed("remove rule %d: lookup %d: %w", have.Priority, have.Table, err)
			a.removalFailed = true
			continue
		}
		a.changed("removed", "rule "+Rule{IIF: have.IifName, Table: have.Table}.String(), "")
	}
	return nil
}
