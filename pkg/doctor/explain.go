package doctor

import (
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

// explanation says which findings follow from one of another check. Names may end with "*".
type explanation struct {
	cause    string
	reach    reach
	explains string
}

// explanations are read from top to bottom: what is said first is nearer to the root. A cause may itself follow from one above.
func explanations() []explanation {
	return []explanation{
		{"liqonet-api-*", ofAll, "liqonet-agent-* liqonet-tunnel-* liqonet-udp-* liqonet-overlay-* liqonet-drift-* liqonet-plan-*"},
		{"liqonet-definition-01", ofAll, "liqonet-agent-* liqonet-tunnel-* liqonet-udp-* liqonet-overlay-* liqonet-drift-* liqonet-pod-* liqonet-key-* liqonet-mtu-02 liqonet-permission-02 liqonet-clock-02 liqonet-rule-01 liqonet-link-01"},
		{"liqonet-permission-02", ofCluster, "liqonet-agent-* liqonet-drift-* liqonet-pod-*"},
		{"liqonet-permission-02", ofPeering, "liqonet-tunnel-* liqonet-udp-* liqonet-overlay-*"},
		{"liqonet-token-01", ofCluster, "liqonet-agent-* liqonet-drift-* liqonet-clock-02"},
		{"liqonet-secret-01", ofCluster, "liqonet-pod-* liqonet-agent-* liqonet-drift-*"},
		{"liqonet-secret-01", ofPeering, "liqonet-tunnel-* liqonet-udp-* liqonet-overlay-* liqonet-agent-* liqonet-key-*"},

		{"liqonet-node-01", ofNode, "liqonet-pod-* liqonet-agent-* liqonet-overlay-* liqonet-node-* liqonet-disk-*"},
		{"liqonet-node-01", ofPeering, "liqonet-tunnel-* liqonet-udp-* liqonet-overlay-* liqonet-mtu-02 liqonet-agent-*"},
		{"liqonet-disk-01", ofCluster, "liqonet-pod-* liqonet-agent-* liqonet-node-*"},
		{"liqonet-disk-01", ofPeering, "liqonet-tunnel-* liqonet-udp-* liqonet-overlay-* liqonet-mtu-02"},
		{"liqonet-duplicate-01", ofCluster, "liqonet-node-* liqonet-overlay-* liqonet-agent-* liqonet-pod-*"},
		{"liqonet-duplicate-01", ofPeering, "liqonet-tunnel-* liqonet-udp-* liqonet-mtu-02"},

		{"liqonet-pod-01", ofCluster, "liqonet-agent-* liqonet-drift-* liqonet-pod-*"},
		{"liqonet-pod-*", ofNode, "liqonet-agent-*"},
		{"liqonet-pod-*", ofPeering, "liqonet-agent-* liqonet-tunnel-* liqonet-udp-* liqonet-overlay-* liqonet-mtu-02"},
		{"liqonet-starved-01", ofNode, "liqonet-agent-* liqonet-overlay-*"},
		{"liqonet-starved-01", ofPeering, "liqonet-agent-* liqonet-tunnel-* liqonet-udp-* liqonet-overlay-* liqonet-mtu-02"},

		{"liqonet-policy-01", ofCluster, "liqonet-agent-* liqonet-overlay-*"},
		{"liqonet-policy-01", ofPeering, "liqonet-tunnel-* liqonet-udp-* liqonet-overlay-* liqonet-endpoint-* liqonet-agent-* liqonet-mtu-02"},
		{"liqonet-firewall-01", ofNode, "liqonet-agent-* liqonet-overlay-*"},
		{"liqonet-firewall-01", ofPeering, "liqonet-tunnel-* liqonet-udp-* liqonet-overlay-* liqonet-mtu-02"},
		{"liqonet-conntrack-01", ofNode, "liqonet-agent-* liqonet-overlay-*"},
		{"liqonet-conntrack-01", ofPeering, "liqonet-tunnel-* liqonet-udp-* liqonet-overlay-* liqonet-mtu-02"},
		{"liqonet-link-01", ofNode, "liqonet-agent-* liqonet-overlay-* liqonet-port-*"},
		{"liqonet-forward-01", ofNode, "liqonet-agent-* liqonet-overlay-*"},
		{"liqonet-forward-01", ofPeering, "liqonet-tunnel-* liqonet-udp-* liqonet-overlay-* liqonet-mtu-02"},
		{"liqonet-port-01", ofNode, "liqonet-agent-* liqonet-overlay-*"},
		{"liqonet-rule-01", ofNode, "liqonet-agent-* liqonet-overlay-*"},
		{"liqonet-route-01", ofNode, "liqonet-agent-* liqonet-overlay-* liqonet-rule-*"},
		{"liqonet-range-01", ofNode, "liqonet-agent-* liqonet-overlay-*"},
		{"liqonet-kernel-01", ofNode, "liqonet-agent-* liqonet-overlay-* liqonet-pod-*"},
		{"liqonet-arp-01", ofNode, "liqonet-agent-* liqonet-overlay-*"},

		{"liqonet-endpoint-01", ofPeering, "liqonet-tunnel-* liqonet-udp-* liqonet-agent-03 liqonet-agent-05"},
		{"liqonet-key-01", ofPeering, "liqonet-tunnel-* liqonet-udp-* liqonet-overlay-* liqonet-drift-*"},

		{"liqonet-agent-04", ofPeering, "liqonet-agent-* liqonet-tunnel-* liqonet-udp-* liqonet-overlay-* liqonet-mtu-02"},
		{"liqonet-agent-03", ofPeering, "liqonet-agent-05 liqonet-tunnel-* liqonet-udp-* liqonet-overlay-* liqonet-mtu-02"},
		{"liqonet-agent-01", ofNode, "liqonet-agent-* liqonet-overlay-*"},
		{"liqonet-agent-02", ofNode, "liqonet-agent-05 liqonet-overlay-*"},

		{"liqonet-nat-01", ofPeering, "liqonet-tunnel-* liqonet-udp-* liqonet-overlay-*"},
		{"liqonet-udp-*", ofPeering, "liqonet-tunnel-* liqonet-overlay-* liqonet-mtu-02 liqonet-agent-05"},
		{"liqonet-mtu-02", ofPeering, "liqonet-tunnel-* liqonet-overlay-*"},
		{"liqonet-tunnel-01", ofPeering, "liqonet-overlay-* liqonet-mtu-02 liqonet-agent-05"},
		{"liqonet-overlay-01", ofNode, "liqonet-agent-05 liqonet-mtu-02"},
	}
}

// Explains names the checks whose findings may follow from that one's, as patterns.
func Explains(check string) string {
	var out []string
	for _, e := range explanations() {
		if !matches(check, e.cause) {
			continue
		}
		for p := range strings.FieldsSeq(e.explains) {
			if p = "`" + p + "`"; !slices.Contains(out, p) {
				out = append(out, p)
			}
		}
	}
	return strings.Join(out, ", ")
}

// matches says whether a check has one of these names.
func matches(check, patterns string) bool {
	for p := range strings.FieldsSeq(patterns) {
		if prefix, any := strings.CutSuffix(p, "*"); check == p || any && strings.HasPrefix(check, prefix) {
			return true
		}
	}
	return false
}

// covers says whether a finding is near enough to explain another one.
func (e explanation) covers(cause, other *Finding) bool {
	switch e.reach {
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
	var amiss []*Finding
	for i := range r.Checks {
		for k := range r.Checks[i].Findings {
			if f := &r.Checks[i].Findings[k]; f.Result.Bad() {
				amiss = append(amiss, f)
			}
		}
	}
	rules := explanations()
	for _, e := range rules {
		for _, cause := range amiss {
			if !matches(cause.Check, e.cause) || cause.Follows != "" {
				continue
			}
			for _, other := range amiss {
				if other != cause && other.Follows == "" && other.Check != cause.Check && matches(other.Check, e.explains) && e.covers(cause, other) {
					other.Follows = cause.Check
				}
			}
		}
	}
	for _, f := range amiss {
		if f.Result.rank() > r.Result.rank() {
			r.Result = f.Result
		}
	}
	// Those that explain others come first, in the order of the explanations.
	order := func(f *Finding) int {
		i := slices.IndexFunc(rules, func(e explanation) bool { return matches(f.Check, e.cause) })
		if i < 0 {
			return len(rules)
		}
		return i
	}
	for _, f := range amiss {
		if f.Follows != "" {
			continue
		}
		if r.Cause == nil || f.Result.rank() > r.Cause.Result.rank() || f.Result == r.Cause.Result && order(f) < order(r.Cause) {
			r.Cause = f
		}
	}
}
