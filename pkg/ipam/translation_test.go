package ipam

import (
	"net/netip"
	"testing"

	"github.com/liqonet/liqonet/test/kit"
)

func TestTranslation(t *testing.T) {
	p := netip.MustParsePrefix
	tr := Translation{
		Pods:  Mappings{{p("10.244.0.0/16"), p("10.60.0.0/16")}, {p("100.64.0.0/24"), p("100.64.0.0/24")}},
		Nodes: Mapping{p("10.80.0.0/19"), p("10.70.64.0/19")},
	}
	for real, mapped := range map[string]string{
		"10.244.3.4": "10.60.3.4", "100.64.0.9": "100.64.0.9", "10.80.0.5": "10.70.64.5", "10.80.31.254": "10.70.95.254",
	} {
		got, ok := tr.Translate(netip.MustParseAddr(real))
		kit.ErrorIf(t, !ok || got.String() != mapped, "%s: want %s, got %s", real, mapped, got)
		got, ok = tr.Reverse(netip.MustParseAddr(mapped))
		kit.ErrorIf(t, !ok || got.String() != real, "%s: want %s, got %s", mapped, real, got)
	}
	for _, unknown := range []string{"10.96.0.1", "10.80.32.1", "fd00::1", "100.64.1.9", "::ffff:10.244.3.9"} {
		got, ok := tr.Translate(netip.MustParseAddr(unknown))
		kit.ErrorIf(t, ok, "%s is translated to %s", unknown, got)
		got, ok = tr.Reverse(netip.MustParseAddr(unknown))
		kit.ErrorIf(t, ok, "%s is translated back to %s", unknown, got)
	}
	kit.Check(t, "translating has changed it", len(tr.Pods), 2)
}
