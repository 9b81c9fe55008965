package verify

import (
	"slices"

	"github.com/liqonet/liqonet/pkg/check"
	"github.com/liqonet/liqonet/pkg/probe"
)

// Report is what a run has come to.
type Report struct {
	// Clusters are the two.
	Clusters []string `json:"clusters"`
	// Seconds is how long it took.
	Seconds float64 `json:"seconds"`
	// Notes say what was left out.
	Notes []string `json:"notes,omitempty"`
	// Its result is failed if a check has failed, and skipped if pods could not be tried.
	check.Report `json:",inline"`
	// Bench has the speeds that were measured.
	Bench []Speed `json:"bench,omitempty"`
}

// Conclude sets the result. Where no pod could ask another one, nothing was verified.
func (r *Report) Conclude() {
	is := func(what func(check.Check) bool) bool { return slices.ContainsFunc(r.Checks, what) }
	switch {
	case is(func(c check.Check) bool { return c.Result == check.Failed }):
		r.Result = check.Failed
	case is(func(c check.Check) bool { return c.Name == PodsTCP && c.Result == check.Skipped }):
		r.Result = check.Skipped
	default:
		r.Result = check.Passed
	}
}

// Speed is one measurement through the tunnel, beside the same between the nodes.
type Speed struct {
	// What is throughput, latency-p50, latency-p99 or requests, in Unit.
	What string `json:"what"`
	Unit string `json:"unit"`
	// From and To are nodes.
	From string `json:"from"`
	To   string `json:"to"`
	// Tunnel is from pod to pod; nil where it could not be measured.
	Tunnel *float64 `json:"tunnel,omitempty"`
	// Bare is from node to node without the tunnel; nil where the nodes do not reach each other.
	Bare *float64 `json:"bare,omitempty"`
	// Ratio is Tunnel by Bare.
	Ratio *float64 `json:"ratio,omitempty"`
}

// Speeds are what was measured from one node to another, nil where nothing was.
func Speeds(from, to string, tunnel, bare *probe.Speed) []Speed {
	kinds := []struct {
		what, unit string
		of         func(probe.Speed) float64
	}{
		{"throughput", "Mbit/s", func(s probe.Speed) float64 { return s.BitsPerSecond / 1e6 }},
		{"latency-p50", "us", func(s probe.Speed) float64 { return s.MedianMicroseconds }},
		{"latency-p99", "us", func(s probe.Speed) float64 { return s.SlowMicroseconds }},
		{"requests", "1/s", func(s probe.Speed) float64 { return s.RequestsPerSecond }},
	}
	var out []Speed
	for _, k := range kinds {
		s := Speed{What: k.what, Unit: k.unit, From: from, To: to}
		if tunnel != nil {
			s.Tunnel = new(k.of(*tunnel))
		}
		if bare != nil {
			s.Bare = new(k.of(*bare))
		}
		if tunnel != nil && bare != nil && *s.Bare > 0 {
			s.Ratio = new(*s.Tunnel / *s.Bare)
		}
		out = append(out, s)
	}
	return out
}
