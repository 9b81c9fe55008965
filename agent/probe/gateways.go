package probe

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"regexp"
	"strconv"
	"time"

	"github.com/liqonet/liqonet/pkg/probe"
)

// scrapeTimeout is how long a gateway may take to show its metrics.
const scrapeTimeout = 2 * time.Second

// drop is a line of a gateway's metrics, see docs/monitoring.md.
var drop = regexp.MustCompile(`^liqonet_gateway_drops_total\{.*hook="([^"]*)".*reason="([^"]*)".*\} ([0-9.e+]+)$`)

// gatewayDrops reads what gateways say that they have dropped, or why that is not known.
func gatewayDrops(ctx context.Context, gateways []netip.AddrPort) []probe.Gateway {
	out := make([]probe.Gateway, len(gateways))
	for i, at := range gateways {
		var err error
		if out[i].Dropped, err = scrape(ctx, at); err != nil {
			out[i].Error = err.Error()
		}
	}
	return out
}

func scrape(ctx context.Context, at netip.AddrPort) (map[string]uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, scrapeTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://%s/metrics", at), nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, fmt.Errorf("its metrics: %s", plainly(err))
	}
	defer resp.Body.Close()
	out := map[string]uint64{}
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		if m := drop.FindStringSubmatch(lines.Text()); m != nil {
			n, _ := strconv.ParseFloat(m[3], 64) // what is not a number is none
			out[m[1]+"/"+m[2]] += uint64(n)
		}
	}
	return out, lines.Err()
}

// grown is by how much the counters have grown.
func grown(before, after []probe.Gateway) (out []probe.Gateway) {
	for i := range after {
		g := probe.Gateway{Error: cmp.Or(after[i].Error, before[i].Error)}
		if g.Error == "" {
			g.Dropped = more(before[i].Dropped, after[i].Dropped)
		}
		out = append(out, g)
	}
	return out
}
