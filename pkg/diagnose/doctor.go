// Package diagnose reads the facts for doctor and runs the probes for verify, from objects and with pods that run for some seconds.
//
// Out of scope: conclusions (pkg/doctor, pkg/verify), and printing.
package diagnose

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/samber/lo"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/check"
	"github.com/liqonet/liqonet/pkg/doctor"
	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/identity"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/lock"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/peering"
	"github.com/liqonet/liqonet/pkg/plan"
	"github.com/liqonet/liqonet/pkg/status"
	"github.com/liqonet/liqonet/pkg/version"
)

// trafficInterval is the time between two reads of tunnel traffic. Gateways report it every 5 s.
const trafficInterval = v1alpha1.ReportInterval + 2*time.Second

// clusterReader is a cluster that doctor examines.
type clusterReader struct {
	*kube.Cluster
	// objectsOnly is true if no pods may run.
	objectsOnly bool
	mu          sync.Mutex
	facts       *doctor.Cluster
	// choice is the nodes whose kernels are read, by these probes.
	choice doctor.Choice
	probes []*Probe
}

// ReadFacts reads the facts of all clusters in parallel. Parts that cannot be read are listed in the facts and do not affect the others. It
// changes nothing, except that pods run for some seconds. Before they start, it calls announce with each sentence about them. If announce is
// nil, no pods run. If ctx ends before, it returns what it has read so far, too.
func ReadFacts(ctx context.Context, clusters []*kube.Cluster, announce func(string), r kube.Reporter) (*doctor.Facts, error) {
	all := lo.Map(clusters, func(c *kube.Cluster, _ int) *clusterReader {
		parts := []doctor.Part{
			doctor.CRDs, doctor.Nodes, doctor.Pods, doctor.Secrets, doctor.Accounts, doctor.Policies, doctor.Peerings,
			doctor.Leases, doctor.Locks, doctor.Identities, doctor.Drifts, doctor.Settings, doctor.Leftovers, doctor.Kernels, doctor.Services,
		}
		skipped := lo.SliceToMap(parts, func(p doctor.Part) (doctor.Part, string) { return p, notRead })
		if c.SkipReason != nil {
			skipped = map[doctor.Part]string{} // that it does not respond says it all
		}
		facts := &doctor.Cluster{Name: c.Name, ID: c.ID, Kubectl: c.Kubectl, SkipReasons: skipped, Now: c.Now()}
		x := &clusterReader{Cluster: c, objectsOnly: announce == nil, facts: facts}
		x.setUnreachable(c.SkipReason)
		return x
	})
	var tests []*udpTest
	err := r.Step(ctx, "Examining", func(ctx context.Context) (err error) {
		if err := failure.ForEachLimit(ctx, len(all), all, func(ctx context.Context, _ int, x *clusterReader) error { return x.read(ctx) }); err != nil {
			return err
		}
		tests, err = planTests(ctx, all)
		return err
	})
	if sentences := announcements(all, tests); err == nil && len(sentences) > 0 {
		for _, s := range sentences {
			announce(s)
		}
		err = r.Step(ctx, "Running pods", func(ctx context.Context) error {
			err := failure.ForEachLimit(ctx, len(all), all, func(ctx context.Context, _ int, x *clusterReader) error {
				return x.skipPart(ctx, doctor.Kernels, x.readKernels(ctx))
			})
			if err == nil {
				err = runTests(ctx, tests)
			}
			return err
		})
	}
	for _, t := range tests {
		if err != nil && !t.Answered {
			t.SkipReason = cmp.Or(t.SkipReason, notRead)
		}
	}
	return &doctor.Facts{
		Version:  version.String(),
		Clusters: lo.Map(all, func(x *clusterReader, _ int) *doctor.Cluster { return x.facts }),
		UDPTests: lo.Map(tests, func(t *udpTest, _ int) doctor.UDPTest { return t.UDPTest }),
	}, err
}

// setUnreachable records why a cluster cannot be queried, if it cannot.
func (x *clusterReader) setUnreachable(err error) {
	if err == nil {
		return
	}
	x.facts.API.Unreachable = err.Error()
	if e := (*kube.Error)(nil); errors.As(err, &e) {
		x.facts.API.Hint = e.Hint
		if e.Kind == kube.Forbidden {
			x.facts.API.Refused, x.facts.API.Unreachable = err.Error(), ""
		}
	}
}

// skipPart records why a part could not be read. It returns an error only if ctx has ended.
func (x *clusterReader) skipPart(ctx context.Context, part doctor.Part, err error) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if ctx.Err() != nil {
		x.facts.SkipReasons[part] = notRead
		return kube.ContextError(ctx, x.Wrap("read "+string(part), cmp.Or(err, ctx.Err())))
	}
	if err == nil {
		if x.facts.SkipReasons[part] == notRead {
			delete(x.facts.SkipReasons, part)
		}
		return nil
	}
	why := err.Error()
	if status := apierrors.APIStatus(nil); apierrors.IsForbidden(err) && errors.As(err, &status) && status.Status().Details != nil {
		why = "you may not read " + status.Status().Details.Kind
	}
	x.facts.SkipReasons[part] = why
	return nil
}

// notRead is why a part was not read if the command ends before.
const notRead = "the command ended before it was read"

// readers are functions that read parts of a cluster.
type readers map[doctor.Part]func(context.Context) error

// readAll reads parts in parallel.
func (x *clusterReader) readAll(ctx context.Context, parts readers) error {
	g, gctx := failure.NewGroup(ctx)
	for part, do := range parts {
		g.Go(func() error { return x.skipPart(gctx, part, do(gctx)) })
	}
	return g.Wait()
}

// read reads everything for which no pods run, and plans those that read kernels.
func (x *clusterReader) read(ctx context.Context) error {
	if x.SkipReason != nil {
		return nil
	}
	if err := x.readAll(ctx, readers{
		doctor.CRDs: x.readCRDs, doctor.Nodes: x.readNodes, doctor.Pods: x.readPods, doctor.Secrets: x.readSecrets,
		doctor.Accounts: func(ctx context.Context) error { return x.ListAll(ctx, &x.facts.Own.Accounts) },
		doctor.Policies: x.readPolicies,
		doctor.Peerings: x.readPeerings, doctor.Leases: x.readLeases, doctor.Locks: x.readLocks,
		doctor.Identities: func(ctx context.Context) (err error) {
			x.facts.Own.Identity, err = identity.ReadKey(ctx, x.Cluster)
			return err
		},
		doctor.Drifts: x.readDrift, doctor.Settings: x.readSettings, doctor.Services: x.readServices, "permissions": x.readPermissions,
	}); err != nil {
		return err
	}
	x.facts.API.ClockAhead = time.Until(x.Now())
	x.facts.Own.Installed = slices.Contains(lo.Values(x.facts.Own.CRDs), "") || x.facts.Own.DaemonSet != nil
	err := x.readAll(ctx, readers{doctor.Leftovers: x.readLeftovers, doctor.Kernels: x.planKernels})
	if len(x.probes) > 0 {
		x.facts.SkipReasons[doctor.Kernels] = notRead
	}
	return err
}

func (x *clusterReader) readPermissions(ctx context.Context) error {
	err := x.CheckPermissions(ctx, engine.InstallPermissions())
	if e := (*kube.Error)(nil); errors.As(err, &e) && e.Kind == kube.Forbidden && strings.Contains(e.Op, "check permissions") {
		x.facts.API.MissingPermissions = strings.Split(strings.TrimPrefix(e.Err.Error(), "the user may not "), ", ")
		return nil
	}
	return err
}

func (x *clusterReader) readCRDs(ctx context.Context) error {
	x.facts.Own.CRDs = map[string]string{}
	for _, crd := range manifests.CRDs() {
		live, err := kube.Get[apiextensionsv1.CustomResourceDefinition](ctx, x.Cluster, "", crd.Name)
		if err != nil {
			return err
		}
		switch {
		case live == nil:
			x.facts.Own.CRDs[crd.Name] = "is gone"
		case live.DeletionTimestamp != nil:
			x.facts.Own.CRDs[crd.Name] = "is being deleted"
		case apihelpers.IsCRDConditionFalse(live, apiextensionsv1.Established):
			x.facts.Own.CRDs[crd.Name] = "is not served"
		default:
			x.facts.Own.CRDs[crd.Name] = ""
		}
	}
	return nil
}

// readServices reads services only if some are exchanged.
func (x *clusterReader) readServices(ctx context.Context) error {
	var peerings v1alpha1.PeeringList
	if err := x.List(ctx, &peerings); err != nil {
		return kube.IgnoreAbsent(err)
	}
	if !slices.ContainsFunc(peerings.Items, func(p v1alpha1.Peering) bool { return p.Spec.Services != nil }) {
		return nil
	}
	facts, err := engine.ReadServices(ctx, x.Cluster)
	if err != nil {
		return err
	}
	exchange := doctor.Exchange{Problems: map[string][]string{}, Withdrawn: map[string]int{}}
	if facts.Refused != nil {
		exchange.Refused = facts.Refused.Error()
	}
	all, err := status.Services(ctx, x.Cluster)
	for _, s := range all {
		if len(s.Problems) > 0 {
			exchange.Problems[s.Namespace+"/"+s.Name] = s.Problems
		}
	}
	views, viewsErr := status.Views(ctx, x.Cluster)
	for _, v := range views {
		if v.Services != nil {
			exchange.Withdrawn[v.Name] = v.Services.Withdrawn
		}
	}
	x.facts.Exchange = exchange
	return cmp.Or(err, viewsErr)
}

func (x *clusterReader) readPods(ctx context.Context) error {
	var list corev1.PodList
	ds, err := kube.Get[appsv1.DaemonSet](ctx, x.Cluster, v1alpha1.Namespace, v1alpha1.NodeAgentName)
	err = cmp.Or(err, x.ListAll(ctx, &list))
	x.facts.Own.Pods, x.facts.Own.DaemonSet = list.Items, ds
	return err
}

func (x *clusterReader) readSecrets(ctx context.Context) error {
	list := kube.SecretMetadataList()
	err := x.List(ctx, list, client.InNamespace(v1alpha1.Namespace))
	x.facts.Own.Secrets = lo.SliceToMap(list.Items, func(s metav1.PartialObjectMetadata) (string, bool) { return s.Name, true })
	return err
}

// calicoGroup is that of Calico's objects in most clusters. Elsewhere they are of calicoV3: https://docs.tigera.io/calico/latest/operations/native-v3-crds.
// Otherwise calicoV3 may be an aggregated API, whose server may be down.
const calicoGroup, calicoV3 = "crd.projectcalico.org", "projectcalico.org/v3"

// readPolicies reads NetworkPolicies, and the cluster-wide policies of those kinds that are served and may be read.
func (x *clusterReader) readPolicies(ctx context.Context) error {
	for _, kind := range doctor.ClusterPolicyKinds() {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
		err := x.Client.List(ctx, list)
		if kube.IsNotFound(err) && kind.Group == calicoGroup {
			list.SetAPIVersion(calicoV3)
			err = x.Client.List(ctx, list)
		}
		if err != nil && !apierrors.IsForbidden(err) && kube.IgnoreAbsent(err) != nil {
			return x.Wrap("list "+kind.Kind, err)
		}
		x.facts.Own.ClusterPolicies = append(x.facts.Own.ClusterPolicies, list.Items...)
	}
	return x.ListAll(ctx, &x.facts.Own.Policies)
}

func (x *clusterReader) readPeerings(ctx context.Context) (err error) {
	var peerings v1alpha1.PeeringList
	var reports v1alpha1.NodeNetworkList
	if err := x.ListAll(ctx, &peerings, &reports); err != nil {
		return err
	}
	x.facts.Peerings, x.facts.Reports = peerings.Items, plan.ReportsByNode(reports.Items)
	x.facts.Ledger, err = x.ReadLedger(ctx)
	return err
}

// readLeases reads heartbeats. If a tunnel does not work, it reads them a second time to measure its traffic.
func (x *clusterReader) readLeases(ctx context.Context) error {
	first, err := x.snapshot(ctx)
	if err != nil {
		return err
	}
	x.facts.Heartbeats = map[string]doctor.Heartbeat{}
	for _, l := range first.leases.Items {
		b := doctor.Heartbeat{Age: first.beats.Age(l.Name), Version: first.beats.Version(l.Name), Starved: first.beats.Starved(l.Name)}
		if m := first.beats.Measurements(l.Name); m != nil {
			b.LossPercent = int(lo.FromPtr(m.LossPercent))
		}
		if stamp := status.LastWrite(&l); l.Spec.RenewTime != nil && !stamp.IsZero() {
			b.ClockAhead = l.Spec.RenewTime.Sub(stamp)
		}
		x.facts.Heartbeats[l.Name] = b
	}
	if !first.down() {
		return nil
	}
	if !failure.Pause(ctx, trafficInterval) {
		return context.Cause(ctx)
	}
	second, err := x.snapshot(ctx)
	if err != nil {
		return err
	}
	x.facts.Traffic = first.traffic(second)
	return nil
}

// snapshot is the state of gateways at one time.
type snapshot struct {
	leases   coordinationv1.LeaseList
	beats    status.Heartbeats
	peerings v1alpha1.PeeringList
}

func (x *clusterReader) snapshot(ctx context.Context) (*snapshot, error) {
	g := &snapshot{beats: status.Heartbeats{}}
	err := x.ListAll(ctx, &g.leases, &g.peerings)
	g.beats.Observe(kube.Pointers(g.leases.Items), x.Now())
	return g, err
}

// down reports whether any gateway is not connected.
func (g *snapshot) down() bool {
	return slices.ContainsFunc(g.peerings.Items, func(p v1alpha1.Peering) bool {
		return slices.ContainsFunc(p.Status.Planes, func(s v1alpha1.PlaneStatus) bool { return !s.Connected })
	})
}

// traffic returns the traffic of tunnels until the second snapshot. A gateway that has restarted counts from 0.
func (g *snapshot) traffic(second *snapshot) map[string]doctor.Traffic {
	out := map[string]doctor.Traffic{}
	for _, p := range slices.Concat(g.peerings.Items, second.peerings.Items) {
		for _, s := range p.Status.Planes {
			name := v1alpha1.GatewayName(p.Name, s.Index)
			t := out[name]
			t.Endpoints = append(t.Endpoints, s.Endpoint)
			switch a, b := g.beats.Measurements(name), second.beats.Measurements(name); {
			case a == nil || b == nil:
			case s.LastHandshake == nil: // each new attempt counts from 0
				t.Sent, t.Received = max(a.SentBytes, b.SentBytes), max(a.ReceivedBytes, b.ReceivedBytes)
			default:
				t.Sent, t.Received = max(b.SentBytes-a.SentBytes, 0), max(b.ReceivedBytes-a.ReceivedBytes, 0)
			}
			out[name] = t
		}
	}
	return out
}

// readLocks reads the holders of locks, and waits until it is known whether they renew them.
func (x *clusterReader) readLocks(ctx context.Context) error {
	held, err := lock.Holders(ctx, x.Client, true)
	x.facts.Locks = lo.Map(held, func(h lock.Holder, _ int) doctor.Lock { return doctor.Lock(h) })
	return err
}

// readSettings reads settings of network plugins.
func (x *clusterReader) readSettings(ctx context.Context) error {
	p := &x.facts.Others
	cilium, errOfCilium := kube.Get[corev1.ConfigMap](ctx, x.Cluster, "kube-system", "cilium-config")
	kubeProxy, errOfProxy := kube.Get[corev1.ConfigMap](ctx, x.Cluster, "kube-system", "kube-proxy")
	anetd, errOfAnetd := kube.Get[appsv1.DaemonSet](ctx, x.Cluster, "kube-system", "anetd")
	if err := cmp.Or(errOfCilium, errOfProxy, errOfAnetd); err != nil {
		return err
	}
	var proxy struct{ Mode string }
	_ = yaml.Unmarshal([]byte(lo.FromPtr(kubeProxy).Data["config.conf"]), &proxy) // an invalid configuration is ignored
	p.Cilium, p.ProxyMode, p.DataplaneV2 = lo.FromPtr(cilium).Data, proxy.Mode, anetd != nil
	felix := &unstructured.Unstructured{}
	felix.SetGroupVersionKind(schema.GroupVersionKind{Group: calicoGroup, Version: "v1", Kind: "FelixConfiguration"})
	felix.SetName("default")
	err := x.Client.Get(ctx, client.ObjectKeyFromObject(felix), felix)
	if meta.IsNoMatchError(err) {
		felix.SetAPIVersion(calicoV3)
		err = x.Client.Get(ctx, client.ObjectKeyFromObject(felix), felix)
	}
	p.CalicoBPF, _, _ = unstructured.NestedBool(felix.Object, "spec", "bpfEnabled")
	return x.Wrap("read FelixConfiguration default", kube.IgnoreAbsent(err))
}

// readDrift compares our objects with those that this command would create for the installed agents.
func (x *clusterReader) readDrift(ctx context.Context) error {
	ds, err := x.ReadNodeAgents(ctx)
	if ds == nil || err != nil {
		return err
	}
	if agents := manifests.AgentsOf(ds, &ds.Spec.Template.Spec); agents.Version != version.String() {
		return fmt.Errorf("the agents have version %s", agents.Version)
	}
	cn, err := x.ReadLedger(ctx)
	if err != nil {
		return err
	}
	weak, changed, err := status.WeakPolicies(ctx, x.Cluster, lo.FromPtr(cn).Spec.Services != nil)
	if err != nil {
		return err
	}
	x.facts.Own.WeakPolicies = append(weak, changed...)
	plans, err := peering.PlanUpgrades(ctx, []*kube.Cluster{x.Cluster}, peering.UpgradeOptions{}, kube.Quiet{})
	if err != nil {
		return err
	}
	x.facts.Own.Drift = lo.Filter(plans.Clusters[0].Objects, func(o plan.ObjectPlan, _ int) bool {
		return o.Action == plan.Create || o.Action == plan.Change
	})
	return nil
}

// readLeftovers finds objects of ours that belong to no peering, and similar projects.
func (x *clusterReader) readLeftovers(ctx context.Context) error {
	var crds metav1.PartialObjectMetadataList
	crds.SetGroupVersionKind(apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinitionList"))
	if err := x.List(ctx, &crds); err != nil {
		return err
	}
	for _, other := range []struct{ name, group string }{{"Liqo", "liqo.io"}, {"Submariner", "submariner.io"}, {"Kilo", "kilo.squat.ai"}} {
		if slices.ContainsFunc(crds.Items, func(m metav1.PartialObjectMetadata) bool { return strings.HasSuffix(m.Name, "."+other.group) }) {
			x.facts.Others.Projects = append(x.facts.Others.Projects, other.name)
		}
	}
	cn := cmp.Or(x.facts.Ledger, &v1alpha1.ClusterNetwork{})
	isServed := len(lo.Compact(lo.Values(x.facts.Own.CRDs))) == 0
	if x.facts.Own.Installed && len(cn.Spec.Peers) == 0 && x.facts.SkipReasons[doctor.Peerings] == "" && isServed {
		x.facts.Own.Leftovers = append(x.facts.Own.Leftovers, "definitions and namespace of liqonet without a peering")
		return nil
	}
	lost, err := orphans(ctx, x.Cluster, cn)
	x.facts.Own.Leftovers = lo.Map(lost, func(o client.Object, _ int) string { return kube.Describe(o) })
	surplus, leaseErr := surplusLeases(ctx, x.Cluster)
	for _, node := range slices.Sorted(maps.Keys(surplus)) {
		x.facts.Own.Leftovers = append(x.facts.Own.Leftovers, fmt.Sprintf("%d Leases that hold more overlay addresses in the name of node %s", len(surplus[node]), node))
	}
	return cmp.Or(err, leaseErr)
}

// Peers returns the IDs of the cluster's peers by name.
func Peers(ctx context.Context, c *kube.Cluster) (ids map[string]string, err error) {
	var list v1alpha1.PeeringList
	err = c.List(ctx, &list)
	return lo.SliceToMap(list.Items, func(p v1alpha1.Peering) (string, string) { return p.Spec.Remote.Name, p.Spec.Remote.ClusterID }), err
}

// fixedByPeer are the checks whose findings peer repairs.
var fixedByPeer = []string{
	"liqonet-definition-01", "liqonet-permission-02", "liqonet-secret-01", "liqonet-agent-01", "liqonet-key-01",
	"liqonet-range-01", "liqonet-range-02", "liqonet-drift-01",
}

// Fix removes our leftovers, and repeats peer for pairs of clusters whose objects need repair. It returns a list of changes.
func Fix(ctx context.Context, clusters []*kube.Cluster, facts *doctor.Facts, report *check.Report, r kube.Reporter) (fixed []string, err error) {
	for i, c := range clusters { // repaired, its agents would use the keys of another cluster
		if facts.Clusters[i].CopiedFrom() != "" {
			return nil, engine.CheckInstallation(ctx, c)
		}
	}
	for i, c := range clusters {
		f := facts.Clusters[i]
		if len(f.Own.Leftovers) == 0 {
			continue
		}
		err := r.Step(ctx, "Removing leftovers in "+c.Name, func(ctx context.Context) error { return RemoveLeftovers(ctx, c, f, r) })
		if err != nil {
			return fixed, err
		}
		fixed = append(fixed, lo.Map(f.Own.Leftovers, func(what string, _ int) string { return c.Name + ": removed " + what })...)
	}
	for i, c := range clusters { // before peer does it without a word, and even if the command line does not name the peers
		if facts.Clusters[i].Ledger != nil && engine.TryCompleteOthers(ctx, c, r) {
			fixed = append(fixed, c.Name+": completed the rollout of node agents")
		}
	}
	var pairs []peering.Pair
	for k, b := range facts.Clusters {
		for i, a := range facts.Clusters[:k] {
			if isPeered(a, b.ID) && isPeered(b, a.ID) && (needsRepair(report, a.Name) || needsRepair(report, b.Name)) {
				pairs = append(pairs, peering.Pair{clusters[i], clusters[k]})
			}
		}
	}
	for _, out := range peering.PeerAll(ctx, pairs, engine.Options{}, func(peering.Pair) kube.Reporter { return r }) {
		if err = cmp.Or(err, out.Err); out.Err == nil { // the others' changes may have been rolled back
			fixed = append(fixed, out.Result.Changed...)
		}
	}
	return fixed, err
}

// needsRepair reports whether the cluster has a finding that peer repairs.
func needsRepair(r *check.Report, cluster string) bool {
	return slices.ContainsFunc(r.Checks, func(c check.Check) bool {
		return slices.Contains(fixedByPeer, c.Name) && slices.ContainsFunc(c.Findings, func(f check.Finding) bool { return f.Cluster == cluster && f.Result.IsProblem() })
	})
}

// RemoveLeftovers removes objects that belong to no peering. If there is no peering, it removes everything.
func RemoveLeftovers(ctx context.Context, c *kube.Cluster, f *doctor.Cluster, r kube.Reporter) error {
	if err := engine.CheckInstallation(ctx, c); err != nil {
		return err
	}
	if f.Ledger == nil || len(f.Ledger.Spec.Peers) == 0 {
		_, err := engine.RemoveUnused(ctx, c, 0, r)
		return err
	}
	all := []lock.Cluster{engine.LockFor(c, "")}
	return engine.WithLocks(ctx, "doctor --fix", r.Step, all, func(ctx context.Context) error { return removeOrphans(ctx, c) })
}

// removeOrphans removes objects that belong to no peering. The caller holds the cluster's lock.
func removeOrphans(ctx context.Context, c *kube.Cluster) error {
	cn, err := c.ReadLedger(ctx)
	if cn == nil || err != nil {
		return err
	}
	lost, err := orphans(ctx, c, cn)
	for _, name := range lo.UniqMap(lost, func(o client.Object, _ int) string { return o.GetLabels()[v1alpha1.LabelPeering] }) {
		err = cmp.Or(err, engine.DeleteAll(ctx, c, kube.PeeringLabels(name)))
	}
	surplus, leaseErr := surplusLeases(ctx, c)
	all := slices.Concat(lo.Values(surplus)...)
	leaseErr = cmp.Or(leaseErr, c.DeleteEach(ctx, lo.Map(all, func(l coordinationv1.Lease, _ int) client.Object { return &l })))
	return cmp.Or(err, leaseErr)
}

// claimTime is longer than an agent takes to report the address that it has claimed.
const claimTime = 2 * time.Minute

// surplusLeases returns the Leases by which nodes hold addresses other than the one that they report, by node. A node agent's
// token can create as many as there are addresses.
func surplusLeases(ctx context.Context, c *kube.Cluster) (map[string][]coordinationv1.Lease, error) {
	var leases coordinationv1.LeaseList
	var reports v1alpha1.NodeNetworkList
	if err := cmp.Or(c.List(ctx, &leases, client.InNamespace(v1alpha1.Namespace)), c.List(ctx, &reports)); err != nil {
		return nil, err
	}
	held := lo.GroupBy(leases.Items, func(l coordinationv1.Lease) string {
		return lo.Ternary(strings.HasPrefix(l.Name, v1alpha1.NodeLeasePrefix), lo.FromPtr(l.Spec.HolderIdentity), "")
	})
	out := map[string][]coordinationv1.Lease{}
	for _, n := range reports.Items { // the garbage collector deletes those of other nodes
		own := held[n.Name]
		slices.SortFunc(own, func(a, b coordinationv1.Lease) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
		for i, l := range own {
			isOwn := l.Name == n.LeaseName() || n.LeaseName() == "" && i == 0
			if !isOwn && time.Since(l.CreationTimestamp.Time) > claimTime {
				out[n.Name] = append(out[n.Name], l)
			}
		}
	}
	return out, nil
}

// orphans returns the objects of peerings that are not in the ledger. The garbage collector deletes objects whose owner is gone.
func orphans(ctx context.Context, c *kube.Cluster, cn *v1alpha1.ClusterNetwork) ([]client.Object, error) {
	objs, err := c.ListManaged(ctx, nil, append(engine.Workloads(), engine.Accounts()...)...)
	return lo.Filter(objs, func(o client.Object, _ int) bool {
		name := o.GetLabels()[v1alpha1.LabelPeering]
		return name != "" && !slices.ContainsFunc(cn.Spec.Peers, func(p v1alpha1.PeerAllocation) bool { return p.Name == name })
	}), err
}
