package nat

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

// Hooks, as counters name them.
const (
	hookPrerouting = "prerouting"
	hookInput      = "input"
	hookForward    = "forward"
	hookOutput     = "output"
)

// Reasons that several rules have.
const (
	icmpError      = "icmp-error"
	reasonForged   = "forged-source"
	forgedOverlay  = "forged-overlay"
	outsideOverlay = "outside-overlay"
	toNode         = "to-node"
	tunnelEnd      = "tunnel-end"
)

// counterSeparator is between the parts of a counter's name.
const counterSeparator = "/"

// Drop is how many packets were dropped at a hook for one reason.
type Drop struct {
	// Hook is one of the kernel's, Reason what the rules are about.
	Hook, Reason string
	// Link is the interface by which the packets came, if the counter is about one.
	Link    string
	Packets uint64
}

// Drops returns what our tables in the calling thread's network namespace have dropped, by hook,
// reason and link. A counter goes on when rules change. It begins anew when an agent has to write the
// whole table, after somebody else's change. There are none where the kernel has no counters with names.
func Drops(ctx context.Context) ([]Drop, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	sum := map[string]uint64{}
	c := &nftables.Conn{}
	for _, family := range []nftables.TableFamily{nftables.TableFamilyIPv4, nftables.TableFamilyIPv6} {
		counted, err := counters(c, &nftables.Table{Name: TableName, Family: family})
		if err != nil {
			return nil, err
		}
		for name, counter := range counted {
			sum[name] += counter.Packets
		}
	}
	var out []Drop
	for name, packets := range sum {
		parts := append(strings.SplitN(name, counterSeparator, 3), "", "")
		out = append(out, Drop{Hook: parts[0], Reason: parts[1], Link: parts[2], Packets: packets})
	}
	return out, nil
}

// counters are those of a table, by name.
func counters(c *nftables.Conn, t *nftables.Table) (map[string]nftables.CounterObj, error) {
	objects, err := c.GetObjects(t)
	if err != nil {
		return nil, fmt.Errorf("list counters of nftables table %q: %w", t.Name, err)
	}
	out := map[string]nftables.CounterObj{}
	for _, o := range objects {
		if counter, ok := o.(*nftables.CounterObj); ok {
			out[counter.Name] = *counter
		}
	}
	return out, nil
}

// counters are the names of those that rules refer to, sorted.
func (t table) counters() (names []string) {
	for _, c := range t.chains {
		for _, r := range c.rules {
			for _, e := range r.exprs {
				if o, ok := e.(*expr.Objref); ok {
					names = append(names, o.Name)
				}
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// dropCounters leaves the rules without counters.
func (t table) dropCounters() {
	for _, c := range t.chains {
		for i := range c.rules {
			c.rules[i].exprs = slices.DeleteFunc(c.rules[i].exprs, func(e expr.Any) bool {
				_, is := e.(*expr.Objref)
				return is
			})
		}
	}
}
