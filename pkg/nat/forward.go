package nat

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

// forwardComment starts the comment of the rules that we put into chains of
// others, by which they are found again.
const forwardComment = "liqonet: "

// EnsureForward has other forward chains accept what comes from and goes to
// interfaces with a name prefix. A verdict of drop cannot be overruled from our
// own table, at any priority. Therefore, and only where a chain would drop (its
// policy is drop, or it ends with a rule that drops or rejects everything), two
// rules are put at its end, before that last rule, with a comment: all that the
// chain decides on by other rules, such as network policies, stays decided.
// Where no chain would drop any more, ours are removed. It says whether anything
// had to be changed.
//
// It covers filter chains of the nftables families ip and inet: those of
// iptables-nft, firewalld and others; not those of iptables-legacy, which the
// kernel keeps elsewhere.
func EnsureForward(ctx context.Context, prefix string) (changed bool, err error) {
	if prefix == "" {
		return false, errors.New("accept forwarded packets: no interface prefix")
	}
	want := []rule{
		{forwardComment + "from peers", join(iifPrefix(prefix), counted(accept()))},
		{forwardComment + "to peers", join(oifPrefix(prefix), counted(accept()))},
	}
	return forward(ctx, want)
}

// RemoveForward removes the rules of EnsureForward, and says whether there were
// any.
func RemoveForward(ctx context.Context) (changed bool, err error) {
	return forward(ctx, nil)
}

// counted puts a counter before a verdict, as iptables does: it refuses to list
// rules without.
func counted(verdict []expr.Any) []expr.Any {
	return join([]expr.Any{&expr.Counter{}}, verdict)
}

func forward(ctx context.Context, want []rule) (changed bool, err error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	c, err := dial()
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, c.CloseLasting()) }()
	for _, family := range []nftables.TableFamily{nftables.TableFamilyIPv4, nftables.TableFamilyINet} {
		chains, err := c.ListChainsOfTableFamily(family)
		if err != nil {
			return false, fmt.Errorf("list nftables chains: %w", err)
		}
		for _, ch := range chains {
			if ch.Table == nil || ch.Table.Name == TableName || ch.Table.Family != family ||
				ch.Type != nftables.ChainTypeFilter || ch.Hooknum == nil || *ch.Hooknum != *nftables.ChainHookForward {
				continue
			}
			queued, err := forwardChain(c, ch, want)
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
func forwardChain(c *nftables.Conn, ch *nftables.Chain, want []rule) (queued bool, err error) {
	rules, err := c.GetRules(ch.Table, ch)
	if err != nil {
		return false, fmt.Errorf("list rules of nftables chain %q: %w", ch.Name, err)
	}
	ours := func(r *nftables.Rule) bool { return strings.HasPrefix(label(r.UserData), forwardComment) }
	foreign := slices.DeleteFunc(slices.Clone(rules), ours)
	tail := len(foreign)
	if len(foreign) > 0 && dropsAll(foreign[tail-1]) {
		tail--
	} else if ch.Policy == nil || *ch.Policy != nftables.ChainPolicyDrop {
		want = nil
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

// dropsAll says whether a rule drops or rejects every packet.
func dropsAll(r *nftables.Rule) bool {
	for _, e := range r.Exprs {
		switch e := e.(type) {
		case *expr.Counter:
		case *expr.Verdict:
			return e.Kind == expr.VerdictDrop
		case *expr.Reject:
			return true
		case *expr.Target:
			return e.Name == "REJECT"
		default:
			return false
		}
	}
	return false
}
