package firewall

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/liqonet/liqonet/pkg/nft"
	"github.com/liqonet/liqonet/pkg/wire"
)

// flagOwner of a table says that only the program that made it can change it (NFT_TABLE_F_OWNER).
const flagOwner = 0x2

// Blocked returns the advice of a [BlockedError], by reading only: before there are agents, too.
func Blocked(ctx context.Context, c Config) (advice []string, err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	var owned []string
	conn := &nftables.Conn{}
	for family, name := range map[nftables.TableFamily]string{nftables.TableFamilyIPv4: "ip", nftables.TableFamilyINet: "inet"} {
		tables, err := conn.ListTablesOfFamily(family)
		if err != nil {
			return nil, fmt.Errorf("list nftables tables: %w", err)
		}
		chains, err := nft.ListChains(conn, family)
		if err != nil {
			return nil, err
		}
		for _, ch := range chains {
			isOwned := slices.ContainsFunc(tables, func(t *nftables.Table) bool { return t.Name == ch.Table.Name && flagsOf(t)&flagOwner != 0 })
			if !isOwned || ch.Type != nftables.ChainTypeFilter || iptablesChains()[*ch.Hooknum] == "" {
				continue
			}
			drops, err := dropsAll(conn, ch)
			if err != nil {
				return nil, err
			}
			if drops {
				owned = append(owned, fmt.Sprintf("%s %s %s", name, ch.Table.Name, ch.Name))
			}
		}
	}
	legacy, err := checkLegacy(c)
	slices.Sort(owned)
	if len(owned) > 0 {
		advice = append(advice, ownedAdvice(owned))
	}
	return append(advice, legacy...), err
}

// flagsOf are those of a table: the kernel writes them in network byte order, and the library reads them in the machine's.
func flagsOf(t *nftables.Table) uint32 {
	return binary.BigEndian.Uint32(binary.NativeEndian.AppendUint32(nil, t.Flags))
}

// dropsAll says that a chain drops what none of its rules accepts.
func dropsAll(c *nftables.Conn, ch *nftables.Chain) (bool, error) {
	rules, err := rulesOf(c, ch.Table, ch.Name)
	if err != nil {
		return false, err
	}
	policy := expr.VerdictAccept
	if *ch.Policy == nftables.ChainPolicyDrop {
		policy = expr.VerdictDrop
	}
	_, end, err := decide(rules, policy, func(chain string) ([]*nftables.Rule, error) { return rulesOf(c, ch.Table, chain) })
	return end == expr.VerdictDrop, err
}

// ownedAdvice says what to do about chains that only their owner can change.
func ownedAdvice(owned []string) string {
	return "nftables chain " + strings.Join(owned, ", ") + " drops packets of peers, and only its owner can change it:" +
		" have that program accept interfaces " + wire.LinkPrefix + "*, and the UDP ports of overlay and tunnel between nodes and gateways;" +
		" with firewalld: NftablesTableOwner=no in /etc/firewalld/firewalld.conf, and restart it"
}
