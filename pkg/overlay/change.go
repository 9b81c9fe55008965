package overlay

import (
	"fmt"
	"strings"
)

// Change is one thing that was changed in the kernel.
type Change struct {
	// Action is "added", "changed", "replaced" or "removed".
	Action string
	// Object says what, as in "link lq1-0" or "route 10.61.0.0/16 dev lq1-0".
	Object string
	// Detail says what about it, where it is not the whole.
	Detail string
}

// String returns, for example, "changed link lq1-0: mtu 1400, up".
func (c Change) String() string {
	if c.Detail == "" {
		return c.Action + " " + c.Object
	}
	return c.Action + " " + c.Object + ": " + c.Detail
}

// String is close to what ip(8) prints.
func (r Route) String() string {
	var b strings.Builder
	if r.Throw {
		b.WriteString("throw ")
	}
	if r.Unreachable {
		b.WriteString("unreachable ")
	}
	b.WriteString(r.Dst.String())
	if r.Via.IsValid() {
		fmt.Fprintf(&b, " via %s", r.Via)
	}
	if r.Dev != "" {
		fmt.Fprintf(&b, " dev %s", r.Dev)
	}
	fmt.Fprintf(&b, " table %d", r.Table)
	if r.Src.IsValid() {
		fmt.Fprintf(&b, " src %s", r.Src)
	}
	if r.MTU != 0 {
		fmt.Fprintf(&b, " mtu %d", r.MTU)
	}
	if r.Metric != 0 {
		fmt.Fprintf(&b, " metric %d", r.Metric)
	}
	return b.String()
}

// String is close to what ip(8) prints.
func (r Rule) String() string {
	if r.IIF == "" {
		return fmt.Sprintf("%d: lookup %d", RulePriority, r.Table)
	}
	return fmt.Sprintf("%d: iif %s lookup %d", RulePriority, r.IIF, r.Table)
}
