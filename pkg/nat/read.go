package nat

import (
	"fmt"
	"slices"

	"github.com/google/nftables"
	"go4.org/netipx"

	"github.com/liqonet/liqonet/pkg/nft"
)

// kernelTable is our table as the kernel has it.
type kernelTable struct {
	exists bool
	// dormant says that the table exists and does nothing.
	dormant bool
	chains  []*nftables.Chain
	labels  map[string][]string
	// sets are those whose definitions are as wanted; setCount counts all.
	sets     map[string][]netipx.IPRange
	setCount int
}

func read(c *nftables.Conn, want table) (kernelTable, error) {
	k := kernelTable{labels: map[string][]string{}, sets: map[string][]netipx.IPRange{}}
	tables, err := c.ListTablesOfFamily(want.family)
	if err != nil {
		return k, fmt.Errorf("list nftables tables: %w", err)
	}
	i := slices.IndexFunc(tables, func(t *nftables.Table) bool {
		return t.Name == TableName && t.Family == want.family
	})
	if i < 0 {
		return k, nil
	}
	t := tables[i]
	k.exists, k.dormant = true, t.Flags != 0
	if err := k.readChains(c, t); err != nil {
		return k, err
	}
	return k, k.readSets(c, t, want)
}

func (k *kernelTable) readChains(c *nftables.Conn, t *nftables.Table) error {
	chains, err := nft.ListChains(c, t.Family)
	if err != nil {
		return err
	}
	for _, ch := range chains {
		if ch.Table == nil || ch.Table.Name != TableName {
			continue
		}
		k.chains = append(k.chains, ch)
		rules, err := c.GetRules(t, ch)
		if err != nil {
			return fmt.Errorf("list rules of nftables chain %q: %w", ch.Name, err)
		}
		labels := []string{}
		for _, r := range rules {
			labels = append(labels, nft.DecodeComment(r.UserData))
		}
		k.labels[ch.Name] = labels
	}
	return nil
}

func (k *kernelTable) readSets(c *nftables.Conn, t *nftables.Table, want table) error {
	sets, err := c.GetSets(t)
	if err != nil {
		return fmt.Errorf("list nftables sets: %w", err)
	}
	k.setCount = len(sets)
	for _, have := range sets {
		i := slices.IndexFunc(want.sets, func(s set) bool {
			return s.name == have.Name && s.interval == have.Interval && !have.IsMap &&
				have.KeyType.GetNFTMagic() == nftables.TypeIPAddr.GetNFTMagic()
		})
		if i < 0 {
			continue
		}
		elements, err := c.GetSetElements(have)
		if err != nil {
			return fmt.Errorf("list elements of nftables set %q: %w", have.Name, err)
		}
		k.sets[have.Name] = want.sets[i].decode(elements)
	}
	return nil
}

// sameRules says that everything is as wanted, apart from elements of sets.
func (k kernelTable) sameRules(want table, labels map[string][]string) bool {
	if !k.exists || k.dormant || len(k.chains) != len(want.chains) ||
		k.setCount != len(want.sets) || len(k.sets) != len(want.sets) {
		return false
	}
	for _, w := range want.chains {
		if !slices.Equal(k.labels[w.name], labels[w.name]) ||
			!slices.ContainsFunc(k.chains, func(c *nftables.Chain) bool { return w.is(c) }) {
			return false
		}
	}
	return true
}

func (c chain) is(k *nftables.Chain) bool {
	if c.hook == nil {
		return k.Name == c.name && k.Hooknum == nil
	}
	return k.Name == c.name && k.Type == c.typ &&
		k.Hooknum != nil && *k.Hooknum == *c.hook &&
		k.Priority != nil && *k.Priority == c.priority &&
		k.Policy != nil && *k.Policy == c.policy
}
