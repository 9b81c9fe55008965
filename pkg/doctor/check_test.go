package doctor

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/samber/lo"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/test/kit"
)

func TestChooseNodes(t *testing.T) {
	named := func(kind string, n int) []string {
		return lo.Times(n, func(i int) string { return fmt.Sprintf("%s-%04d", kind, i) })
	}
	for name, tt := range map[string]struct {
		// There are so many nodes that are well, that are unwell, and that are unwell with a gateway; one well node has a gateway.
		well, unwell, hosts int
		// want is so many nodes of the same kinds.
		wantWell, wantUnwell, wantHosts, leftOut int
	}{
		"none":                           {},
		"few":                            {well: 2, unwell: 1, wantWell: 2, wantUnwell: 1},
		"as many as a sample has":        {well: 60, unwell: 40, wantWell: 60, wantUnwell: 40},
		"one more":                       {well: 101, wantWell: 100},
		"some unwell ones among many":    {well: 2000, unwell: 7, wantWell: 93, wantUnwell: 7},
		"many unwell ones":               {well: 2000, unwell: 200, wantWell: 20, wantUnwell: 80, leftOut: 120},
		"nearly all are unwell":          {well: 5, unwell: 200, wantWell: 5, wantUnwell: 80, leftOut: 120},
		"all are unwell":                 {unwell: 5000, wantUnwell: 80, leftOut: 4920},
		"gateways on unwell nodes":       {well: 500, unwell: 100, hosts: 4, wantWell: 20, wantUnwell: 76, wantHosts: 4, leftOut: 24},
		"more gateways than a sample is": {well: 500, hosts: 300, wantWell: 20, wantHosts: 80, leftOut: 220},
	} {
		t.Run(name, func(t *testing.T) {
			all := slices.Concat(named("well", tt.well), named("unwell", tt.unwell), named("host", tt.hosts))
			slices.Reverse(all)
			const gateway = "well-0001"
			of := func(kind string) func(string) bool {
				return func(n string) bool { return strings.HasPrefix(n, kind+"-") }
			}
			c := ChooseNodes(all, func(n string) bool { return !of("well")(n) }, func(n string) bool { return of("host")(n) || n == gateway })
			count := func(kind string) int { return lo.CountBy(c.Nodes, of(kind)) }
			if count("well") != tt.wantWell || count("unwell") != tt.wantUnwell || count("host") != tt.wantHosts || c.LeftOut != tt.leftOut {
				t.Errorf("got %d well nodes, %d unwell ones, %d with gateways, and %d are left out", count("well"), count("unwell"), count("host"), c.LeftOut)
			}
			if c.Of != len(all) || c.IsSample() != (len(all) > len(c.Nodes)) || c.IsSample() && c.Unwell != tt.unwell+tt.hosts {
				t.Errorf("it says that these are %d of %d, and that %d are unwell", len(c.Nodes), c.Of, c.Unwell)
			}
			kit.ErrorIf(t, !slices.IsSorted(c.Nodes) || len(lo.Uniq(c.Nodes)) != len(c.Nodes) || !lo.Every(all, c.Nodes),
				"these are not some of the nodes, each once, and sorted: %v", c.Nodes)
			kit.ErrorIf(t, tt.well > 1 && !slices.Contains(c.Nodes, gateway), "the node with a gateway is not in the sample")
		})
	}
	kit.Check(t, "the names are not evenly distributed", spread(named("n", 10), 3), []string{"n-0000", "n-0003", "n-0006"})
}

func TestUnwell(t *testing.T) {
	lease := (&v1alpha1.NodeNetwork{Status: v1alpha1.NodeNetworkStatus{Address: addr("10.80.0.1")}}).LeaseName()
	for name, tt := range map[string]struct {
		change func(c *Cluster, r *v1alpha1.NodeNetwork)
		want   bool
	}{
		"nothing": {func(*Cluster, *v1alpha1.NodeNetwork) {}, false},
		"a gateway that it does not reach": {func(_ *Cluster, r *v1alpha1.NodeNetwork) {
			r.Status.Gateways = append(r.Status.Gateways, v1alpha1.NodeGateway{PeeringName: "b"})
		}, true},
		"a problem": {func(_ *Cluster, r *v1alpha1.NodeNetwork) {
			r.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Reason: "CannotApply", Message: "no"}}
		}, true},
		"silence": {func(c *Cluster, _ *v1alpha1.NodeNetwork) {
			c.Heartbeats[lease] = Heartbeat{Age: new(time.Hour)}
		}, true},
		"no heartbeat":                  {func(c *Cluster, _ *v1alpha1.NodeNetwork) { c.Heartbeats = nil }, true},
		"no report":                     {func(c *Cluster, _ *v1alpha1.NodeNetwork) { c.Reports = nil }, true},
		"no agents are installed":       {func(c *Cluster, _ *v1alpha1.NodeNetwork) { c.Reports, c.Own.DaemonSet = nil, nil }, false},
		"reports that may not be read":  {func(c *Cluster, _ *v1alpha1.NodeNetwork) { c.Reports, c.SkipReasons[Peerings] = nil, "forbidden" }, false},
		"heartbeats that were not read": {func(c *Cluster, _ *v1alpha1.NodeNetwork) { c.Heartbeats, c.SkipReasons[Leases] = nil, "forbidden" }, false},
	} {
		r := &v1alpha1.NodeNetwork{Status: v1alpha1.NodeNetworkStatus{
			Address: addr("10.80.0.1"), Gateways: []v1alpha1.NodeGateway{{PeeringName: "a", Ready: true}},
		}}
		c := &Cluster{SkipReasons: map[Part]string{}, Heartbeats: map[string]Heartbeat{lease: {Age: new(time.Second)}}, Reports: map[string]*v1alpha1.NodeNetwork{"n": r}}
		c.Own.DaemonSet = &appsv1.DaemonSet{}
		tt.change(c, r)
		got := c.isUnwell("n")
		kit.ErrorIf(t, got != tt.want, "%s: unwell is %t", name, got)
	}
}
