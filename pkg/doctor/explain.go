package doctor

import (
	"cmp"
	"path"
	"slices"
	"strings"
)

// reach is how far a finding explains others.
type reach int

const (
	// ofNode explains what is found of the same node, or of a gateway that runs there.
	ofNode reach = iota
	// ofCluster explains what is found in the same cluster.
	ofCluster
	// ofPeering explains what is found of the same peering, in both clusters.
	ofPeering
	// ofAll explains what is found in any cluster.
	ofAll
)

// Explanation says which findings follow from one of another check, by how far it explains them. Names go without Prefix, and may end
// with "*".
type Explanation struct {
	Cause    string
	Explains [ofAll + 1]string
}

// Explanations are read from top to bottom: what is said first is nearer to the root. A cause may itself follow from one above.
func Explanations() []Explanation {
	type reaches = [ofAll + 1]string
	return []Explanation{
		{"api-*", reaches{ofAll: "agent-* tunnel-* udp-* overlay-* drift-* plan-*"}},
		{"definition-01", reaches{ofAll: "agent-* tunnel-* udp-* overlay-* drift-* pod-* key-* mtu-02 permission-02 " +
			"clock-02 rule-01 link-01"}},
		{"permission-02", reaches{ofCluster: "agent-* drift-* pod-*", ofPeering: "tunnel-* udp-* overlay-*"}},
		{"token-01", reaches{ofCluster: "agent-* drift-* clock-02"}},
		{"secret-01", reaches{ofCluster: "pod-* agent-* drift-*", ofPeering: "tunnel-* udp-* overlay-* agent-* key-*"}},

		{"node-01", reaches{ofNode: "pod-* agent-* overlay-* node-* disk-*", ofPeering: "tunnel-* udp-* overlay-* mtu-02 agent-*"}},
		{"disk-01", reaches{ofCluster: "pod-* agent-* node-*", ofPeering: "tunnel-* udp-* overlay-* mtu-02"}},
		{"duplicate-01", reaches{ofCluster: "node-* overlay-* agent-* pod-*", ofPeering: "tunnel-* udp-* mtu-02"}},

		{"pod-01", reaches{ofCluster: "agent-* drift-* pod-*"}},
		{"pod-*", reaches{ofNode: "agent-*", ofPeering: "agent-* tunnel-* udp-* overlay-* mtu-02"}},
		{"starved-01", reaches{ofNode: "agent-* overlay-*", ofPeering: "agent-* tunnel-* udp-* overlay-* mtu-02"}},

		{"policy-01", reaches{ofCluster: "agent-* overlay-*", ofPeering: "tunnel-* udp-* overlay-* endpoint-* agent-* mtu-02"}},
		{"firewall-01", reaches{ofNode: "agent-* overlay-*", ofPeering: "tunnel-* udp-* overlay-* mtu-02"}},
		{"conntrack-01", reaches{ofNode: "agent-* overlay-*", ofPeering: "tunnel-* udp-* overlay-* mtu-02"}},
		{"link-01", reaches{ofNode: "agent-* overlay-* port-*"}},
		{"forward-01", reaches{ofNode: "agent-* overlay-*", ofPeering: "tunnel-* udp-* overlay-* mtu-02"}},
		{"port-01", reaches{ofNode: "agent-* overlay-*"}},
		{"rule-01", reaches{ofNode: "agent-* overlay-*"}},
		{"route-01", reaches{ofNode: "agent-* overlay-* rule-*"}},
		{"range-01", reaches{ofNode: "agent-* overlay-*"}},
		{"kernel-01", reaches{ofNode: "agent-* overlay-* pod-*"}},
		{"arp-01", reaches{ofNode: "agent-* overlay-*"}},

		{"endpoint-01", reaches{ofPeering: "tunnel-* udp-* agent-03 agent-05"}},
		{"key-01", reaches{ofPeering: "tunnel-* udp-* overlay-* drift-*"}},

		{"agent-04", reaches{ofPeering: "agent-* tunnel-* udp-* overlay-* mtu-02"}},
		{"agent-03", reaches{ofPeering: "agent-05 tunnel-* udp-* overlay-* mtu-02"}},
		{"agent-01", reaches{ofNode: "agent-* overlay-*"}},
		{"agent-02", reaches{ofNode: "agent-05 overlay-*"}},

		{"nat-01", reaches{ofPeering: "tunnel-* udp-* overlay-*"}},
		{"udp-*", reaches{ofPeering: "tunnel-* overlay-* mtu-02 agent-05"}},
		{"mtu-02", reaches{ofPeering: "tunnel-* overlay-*"}},
		{"tunnel-01", reaches{ofPeering: "overlay-* mtu-02 agent-05"}},
		{"overlay-01", reaches{ofNode: "agent-05 mtu-02"}},
	}
}

// Prefix is what the names of all checks begin with.
const Prefix = "liqonet-"

// matches says whether a check has one of these names.
func matches(check, patterns string) bool {
	return slices.ContainsFunc(strings.Fields(patterns), func(p string) bool {
		is, _ := path.Match(Prefix+p, check) // an error is about the pattern, which a test tries
		return is
	})
}

// covers says whether a finding is near enough to explain another one.
func (r reach) covers(cause, other *Finding) bool {
	switch r {
	case ofNode:
		return cause.Cluster == other.Cluster && cause.Node != "" && cause.Node == other.Node
	case ofCluster:
		return cause.Cluster == other.Cluster
	case ofPeering:
		return cause.Cluster == other.Cluster && len(other.pairs) == 0 && len(cause.pairs) > 0 ||
			slices.ContainsFunc(cause.pairs, func(pair string) bool { return slices.Contains(other.pairs, pair) })
	}
	return true
}

// explain says of each failure from which it follows, and which one is the cause.
func (r *Report) explain() {
	var faulty []*Finding
	for c := range each(r.Checks) {
		for f := range each(c.Findings) {
			if f.Result.Bad() {
				faulty = append(faulty, f)
			}
		}
		if c.Result.Bad() && c.Result.rank() > r.Result.rank() {
			r.Result = c.Result
		}
	}
	rules := Explanations()
	for _, e := range rules {
		for far, explained := range e.Explains {
			for _, cause := range faulty {
				if !matches(cause.Check, e.Cause) || cause.Follows != "" {
					continue
				}
				for _, other := range faulty {
					if other.Check != cause.Check && other.Follows == "" && matches(other.Check, explained) && reach(far).covers(cause, other) {
						other.Follows = cause.Check
					}
				}
			}
		}
	}
	// Those that explain others come first, in the order of the explanations.
	order := func(f *Finding) int {
		if i := slices.IndexFunc(rules, func(e Explanation) bool { return matches(f.Check, e.Cause) }); i >= 0 {
			return i
		}
		return len(rules)
	}
	if roots := slices.DeleteFunc(faulty, func(f *Finding) bool { return f.Follows != "" }); len(roots) > 0 {
		r.Cause = slices.MinFunc(roots, func(a, b *Finding) int { return cmp.Or(b.Result.rank()-a.Result.rank(), order(a)-order(b)) })
	}
}
