package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/samber/lo"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/services"
	"github.com/liqonet/liqonet/test/workload"
)

// kep are three clusters of a mesh, for the test of one statement of KEP-1645. Their services lead to the test pods
// of their own cluster, which all have other names.
type kep struct {
	a, b, c *site
	// name is that of a service which no other statement has.
	name string
}

// statement is a test of what KEP-1645 says. Its name is in the tables of docs/services.md, which have the sentences as
// the newest version has them. Comments here quote parts of these or earlier ones.
type statement struct {
	name string
	test func(*kep, *testing.T, context.Context)
}

// statements are in the order of the KEP. The last one changes the mesh.
func statements() []statement {
	return []statement{
		{"cluster-name-is-label", (*kep).clusterNameIsLabel},
		{"export-in-each-cluster", (*kep).exportInEachCluster},
		{"export-makes-visible", (*kep).exportMakesVisible},
		{"not-exported-by-default", (*kep).notExportedByDefault},
		{"same-name-is-one-service", (*kep).sameNameIsOneService},
		{"not-joined-without-export", (*kep).notJoinedWithoutExport},
		{"unexport-stops", (*kep).unexportStops},
		{"restricted-by-rbac", (*kep).restrictedByRBAC},
		{"reserved-namespaces", (*kep).reservedNamespaces},
		{"imported-where-namespace-exists", (*kep).importedWhereNamespaceExists},
		{"exporters-import-too", (*kep).exportersImportToo},
		{"users-do-not-write-imports", (*kep).usersDoNotWriteImports},
		{"controller-owns-imports", (*kep).controllerOwnsImports},
		{"valid-condition", (*kep).validCondition},
		{"external-name", (*kep).externalName},
		{"clusterset-ip", (*kep).clusterSetIP},
		{"clusterset-ip-stays", (*kep).clusterSetIPStays},
		{"headless", (*kep).headless},
		{"node-port", (*kep).nodePort},
		{"port-fields", (*kep).portFields},
		{"slices-have-labels", (*kep).slicesHaveLabels},
		{"slices-of-one-cluster", (*kep).slicesOfOneCluster},
		{"stale-endpoints", (*kep).staleEndpoints},
		{"conflict-oldest-wins", (*kep).conflictOldestWins},
		{"conflict-on-all-exports", (*kep).conflictOnAllExports},
		{"conflict-message", (*kep).conflictMessage},
		{"same-everywhere", (*kep).sameEverywhere},
		{"ports-union", (*kep).portsUnion},
		{"ports-by-name", (*kep).portsByName},
		{"ports-by-number", (*kep).portsByNumber},
		{"headlessness-conflict", (*kep).headlessnessConflict},
		{"traffic-policies", (*kep).trafficPolicies},
		{"exported-labels", (*kep).exportedLabels},
		{"local-service-unchanged", (*kep).localServiceUnchanged},
		{"cluster-id-stays", (*kep).clusterIDStays},
		{"cluster-id-change", (*kep).clusterIDChange},
	}
}

// The statements of KEP-1645 hold, between any three of four clusters: with equal, partly overlapping and disjoint
// ranges, with kube-proxy's iptables and nftables.
func TestKEP(t *testing.T) {
	begin(t)
	ctx := t.Context() // many statements
	var peer [][]string
	for i, x := range fx.clusters {
		for _, y := range fx.clusters[:i] {
			args := []string{"peer", x.Name, y.Name, "--services"}
			if slices.Contains([]*cluster{x, y}, fx.delta) { // whose pods seem to have the range around theirs, see TestTopologies
				args = append(args, "--pod-cidr", fx.delta.Name+"="+fx.delta.spec.PodCIDR.String())
			}
			peer = append(peer, args)
		}
	}
	togetherAtMost(t, ctx, 3, peer...)
	sites := lo.Map(fx.clusters, func(c *cluster, _ int) *site { return newSite(t, c, "default") })
	first := random(t).IntN(len(sites))
	for i, s := range statements() {
		at := func(k int) *site { return sites[(first+i+k)%len(sites)] }
		k := &kep{at(0), at(1), at(2), fmt.Sprintf("kep-%d", i)}
		t.Run(s.name, func(t *testing.T) {
			t.Logf("%s and %s export, %s imports", k.a.Name, k.b.Name, k.c.Name)
			s.test(k, t, ctx)
			logFailure(t, ctx, k.a.cluster, k.b.cluster, k.c.cluster)
		})
	}
	for _, s := range sites {
		var left mcs.ServiceImportList
		eventually(t, ctx, arrivalTimeout, s.Name+" imports nothing", func() string {
			err := kube.IgnoreAbsent(s.api.List(ctx, &left))
			return unless(err == nil && len(left.Items) == 0, "%d imports: %v", len(left.Items), err)
		})
	}
	eachPair(t, ctx, fx.clusters, "unpeer")
	checkNothingLeft(t, ctx)
}

// row is a line of the table of statements in docs/services.md.
var (
	row       = regexp.MustCompile(`(?m)^\| *(\d+) *\|.*$`)
	namedTest = regexp.MustCompile("`TestKEP/([^`]+)`")
)

// Each statement in the table of docs/services.md has a test, or a reason why it cannot hold, and each test has a
// statement.
func TestEachStatementHasATest(t *testing.T) {
	page := string(must(os.ReadFile(filepath.Join("..", "..", "docs", "services.md")))(t))
	names := lo.Map(statements(), func(s statement, _ int) string { return s.name })
	expect(t, len(lo.Uniq(names)) == len(names), "two statements have the same name: %v", names)
	rows := row.FindAllStringSubmatch(page, -1)
	expect(t, len(rows) > 0, "there is no table of statements")
	var used []string
	for i, r := range rows {
		expect(t, r[1] == fmt.Sprint(i+1), "row %s is the %d. one", r[1], i+1)
		tests := namedTest.FindAllStringSubmatch(r[0], -1)
		expect(t, len(tests) > 0 || strings.Contains(r[0], "cannot hold"), "the statement has neither a test nor a reason: %s", r[0])
		for _, name := range tests {
			used = append(used, name[1])
		}
	}
	missing, unused := lo.Difference(lo.Uniq(used), names)
	expect(t, len(missing) == 0, "the table names tests that do not exist: %v", missing)
	expect(t, len(unused) == 0, "the table does not name the tests %v", unused)
}

// serve makes the statement's Service in a cluster, until the statement has been tested.
func (k *kep) serve(t *testing.T, ctx context.Context, s *site, edits ...func(*corev1.Service)) {
	t.Helper()
	svc := newService(k.name)
	svc.Spec.Selector = map[string]string{"app": "tester"}
	for _, edit := range edits {
		edit(svc)
	}
	t.Cleanup(func() { s.delete(t, ctx, newExport(k.name), newService(k.name)) })
	s.create(t, ctx, svc)
}

// export makes and exports it.
func (k *kep) export(t *testing.T, ctx context.Context, s *site, edits ...func(*corev1.Service)) {
	t.Helper()
	k.serve(t, ctx, s, edits...)
	s.create(t, ctx, newExport(k.name))
}

// exportBoth exports the service of the first cluster and then, so that it is younger, that of the second one.
func (k *kep) exportBoth(t *testing.T, ctx context.Context, older, younger func(*corev1.Service)) {
	t.Helper()
	k.export(t, ctx, k.a, older)
	nextSecond()
	k.export(t, ctx, k.b, younger)
	for _, s := range k.all() {
		s.awaitImport(t, ctx, k.name, k.a.cluster, k.b.cluster)
	}
}

// nextSecond waits for the next second: objects do not tell more exactly when they were created.
func nextSecond() { time.Sleep(time.Until(time.Now().Truncate(time.Second).Add(time.Second))) }

func asIs(*corev1.Service) {}

func (k *kep) all() []*site { return []*site{k.a, k.b, k.c} }

// usable waits until all three clusters import the service from some, and their pods answer everywhere.
func (k *kep) usable(t *testing.T, ctx context.Context, from ...*site) {
	t.Helper()
	clusters := lo.Map(from, func(s *site, _ int) *cluster { return s.cluster })
	pods := lo.FlatMap(from, func(s *site, _ int) []string { return s.testers() })
	for _, s := range k.all() {
		to := addressIn(t, s.awaitImport(t, ctx, k.name, clusters...), webPort)
		checkAnswers(t, ctx, everywhere(s.cluster), to, pods...)
	}
}

// at is where a cluster calls the service.
func (k *kep) at(t *testing.T, ctx context.Context, s *site, port uint16) netip.AddrPort {
	t.Helper()
	i := must(s.imported(ctx, k.name))(t)
	require(t, i != nil, "%s does not import %s", s.Name, k.name)
	return addressIn(t, i, port)
}

// later exports another service, and returns when all have imported it. What was exported before has arrived then.
func (k *kep) later(t *testing.T, ctx context.Context) {
	t.Helper()
	next := *k
	next.name += "-later"
	next.export(t, ctx, k.a)
	for _, s := range k.all() {
		s.awaitImport(t, ctx, next.name, k.a.cluster)
	}
}

// spec waits until the import of a cluster is as wanted, and returns it without what differs from cluster to cluster.
func (k *kep) spec(t *testing.T, ctx context.Context, s *site, what string, isWanted func(mcs.ServiceImportSpec) bool) (spec mcs.ServiceImportSpec) {
	t.Helper()
	eventually(t, ctx, arrivalTimeout, fmt.Sprintf("%s imports %s with %s", s.Name, k.name, what), func() string {
		i, err := s.imported(ctx, k.name)
		if err != nil || i == nil {
			return fmt.Sprintf("there is no import: %v", err)
		}
		spec = i.Spec
		return unless(isWanted(spec), "%+v", spec)
	})
	spec.IPs = nil
	return spec
}

// portsOf are the names and numbers of an import's ports.
func portsOf(spec mcs.ServiceImportSpec) string {
	return strings.Join(lo.Map(spec.Ports, func(p mcs.ServicePort, _ int) string { return fmt.Sprintf("%q %s %d", p.Name, p.Protocol, p.Port) }), ", ")
}

// "The cluster name must be a valid RFC 1123 DNS label."
func (k *kep) clusterNameIsLabel(t *testing.T, ctx context.Context) {
	k.export(t, ctx, k.a)
	k.c.awaitImport(t, ctx, k.name, k.a.cluster)
	for _, s := range must(k.c.slicesOf(ctx, k.name, ""))(t) {
		id := s.Labels[mcs.LabelSourceCluster]
		expect(t, len(validation.IsDNS1123Label(id)) == 0, "slice %s is of the cluster %q", s.Name, id)
	}
	for _, id := range []string{"Not_a_label", "two.labels", strings.Repeat("x", 64), ""} {
		liqonet(t, ctx, "", "services", "enable", k.a.Name, k.c.Name, "--cluster-id", k.a.Name+"="+id).refused(t, exitUsage)
	}
}

// "ServiceExports must be created in each cluster that the underlying Service resides in."
func (k *kep) exportInEachCluster(t *testing.T, ctx context.Context) {
	k.export(t, ctx, k.a)
	k.serve(t, ctx, k.b)
	k.usable(t, ctx, k.a)
	k.b.create(t, ctx, newExport(k.name))
	k.usable(t, ctx, k.a, k.b)
}

// "Creation of a ServiceExport in a cluster will signify that the Service … should be visible to other clusters."
func (k *kep) exportMakesVisible(t *testing.T, ctx context.Context) {
	k.serve(t, ctx, k.a)
	k.later(t, ctx)
	for _, s := range k.all() {
		none(t, s.leftOf(ctx, k.name), "%s imports what is not exported", s.Name)
	}
	k.a.create(t, ctx, newExport(k.name))
	k.usable(t, ctx, k.a)
}

// "Services will not be visible to other clusters in the clusterset by default. They must be explicitly marked for
// export."
func (k *kep) notExportedByDefault(t *testing.T, ctx context.Context) {
	k.serve(t, ctx, k.a)
	k.later(t, ctx)
	for _, s := range k.all() {
		none(t, s.leftOf(ctx, k.name), "%s imports what is not exported", s.Name)
	}
	err := k.a.api.Get(ctx, client.ObjectKey{Name: services.Key{Namespace: k.a.namespace, Name: k.name}.ObjectName()}, &v1alpha1.ExportedService{})
	expect(t, kube.IsNotFound(err), "it is told to peers: %v", err)
}

// "If multiple clusters … have ServiceExports with the same name and namespace, these will be considered the same
// service."
func (k *kep) sameNameIsOneService(t *testing.T, ctx context.Context) {
	k.export(t, ctx, k.a)
	k.export(t, ctx, k.b)
	k.usable(t, ctx, k.a, k.b)
}

// "A Service without a corresponding ServiceExport in its local cluster will not be exported even if other clusters
// are exporting a Service with the same namespaced name."
func (k *kep) notJoinedWithoutExport(t *testing.T, ctx context.Context) {
	k.serve(t, ctx, k.b)
	k.export(t, ctx, k.a)
	k.usable(t, ctx, k.a)
}

// "Deleting a ServiceExport will stop exporting the name-mapped Service." "If all ServiceExport instances are
// deleted, each ServiceImport will also be deleted from all clusters."
func (k *kep) unexportStops(t *testing.T, ctx context.Context) {
	k.export(t, ctx, k.a)
	k.export(t, ctx, k.b)
	k.usable(t, ctx, k.a, k.b)
	k.b.delete(t, ctx, newExport(k.name))
	k.usable(t, ctx, k.a)
	k.a.delete(t, ctx, newExport(k.name))
	for _, s := range k.all() {
		s.awaitGone(t, ctx, arrivalTimeout, k.name)
	}
}

// canI says what the API server says of a user's permission in the namespace.
func (s *site) canI(ctx context.Context, user, verb, resource string) string {
	out, _ := s.Run(ctx, "", "auth", "can-i", verb, resource+"."+mcs.GroupName, "-n", s.namespace, "--as="+user) // no is an error
	return strings.TrimSpace(out)
}

// members gives users roles of Kubernetes in the namespace, one each, of the same name.
func (k *kep) members(t *testing.T, ctx context.Context, roles ...string) {
	t.Helper()
	for _, role := range roles {
		name := k.name + "-" + role
		k.a.kubectl(t, ctx, "-n", k.a.namespace, "create", "rolebinding", name, "--clusterrole="+role, "--user="+name)
		t.Cleanup(func() { k.a.kubectl(t, ctx, "-n", k.a.namespace, "delete", "rolebinding", name) })
	}
}

// "Cluster administrators may use RBAC rules to prevent creation of ServiceExports in select namespaces."
func (k *kep) restrictedByRBAC(t *testing.T, ctx context.Context) {
	k.members(t, ctx, "admin", "view")
	eventually(t, ctx, arrivalTimeout, "administrators of a namespace may export", func() string {
		return unless(k.a.canI(ctx, k.name+"-admin", "create", mcs.ServiceExportPluralName) == "yes", "they may not")
	})
	for _, user := range []string{k.name + "-view", "nobody"} {
		for _, verb := range []string{"create", "patch", "delete"} {
			got := k.a.canI(ctx, user, verb, mcs.ServiceExportPluralName)
			expect(t, strings.HasPrefix(got, "no"), "may %s %s exports: %q", user, verb, got)
		}
	}
}

// "Administrators should be especially careful about permitting exports from kube-system."
func (k *kep) reservedNamespaces(t *testing.T, ctx context.Context) {
	system := k.a.in("kube-system")
	t.Cleanup(func() { system.delete(t, ctx, newExport(k.name), newService(k.name)) })
	system.create(t, ctx, newService(k.name), newExport(k.name))
	system.awaitCondition(t, ctx, k.name, valid, no, "ReservedNamespace")
	k.later(t, ctx)
	for _, s := range k.all() {
		none(t, s.in("kube-system").leftOf(ctx, k.name), "%s imports a service of kube-system", s.Name)
	}
}

// "A multi-cluster service will be imported only by clusters in which the service's namespace exists. All clusters
// containing the service's namespace will import the service."
func (k *kep) importedWhereNamespaceExists(t *testing.T, ctx context.Context) {
	a, b, c := k.a.in(k.name), k.b.in(k.name), k.c.in(k.name)
	makeNamespaces(t, ctx, a, b)
	svc, slice := withoutSelector(k.name, workload.TCPPort, a.pods[0].IP)
	a.create(t, ctx, svc, slice, newExport(k.name))
	for _, s := range []*site{a, b} {
		to := addressIn(t, s.awaitImport(t, ctx, k.name, a.cluster), webPort)
		checkAnswers(t, ctx, everywhere(s.cluster), to, a.pods[0].Pod.Name)
	}
	told := client.ObjectKey{Name: services.Key{Namespace: k.name, Name: k.name}.ReceivedName(a.Name)}
	eventually(t, ctx, arrivalTimeout, c.Name+" knows the service", func() string { return why(c.api.Get(ctx, told, &v1alpha1.ReceivedService{})) })
	k.later(t, ctx)
	err := c.api.Get(ctx, client.ObjectKey{Name: k.name}, &corev1.Namespace{})
	expect(t, kube.IsNotFound(err), "%s has got a namespace that nobody has made there: %v", c.Name, err)
	makeNamespaces(t, ctx, c)
	to := addressIn(t, c.awaitImport(t, ctx, k.name, a.cluster), webPort)
	checkAnswers(t, ctx, everywhere(c.cluster), to, a.pods[0].Pod.Name)
}

// "This means that all exporting clusters will also import the multi-cluster service."
func (k *kep) exportersImportToo(t *testing.T, ctx context.Context) {
	k.export(t, ctx, k.a)
	i := k.a.awaitImport(t, ctx, k.name, k.a.cluster)
	to := addressIn(t, i, webPort)
	expect(t, to != k.a.localAddress(t, ctx, k.name), "the import has the address of the Service itself: %s", to)
	checkAnswers(t, ctx, everywhere(k.a.cluster), to, k.a.testers()...)
	k.export(t, ctx, k.b)
	checkAnswers(t, ctx, everywhere(k.a.cluster), to, slices.Concat(k.a.testers(), k.b.testers())...)
}

// "Non-cluster-admin users should not be allowed to create or modify ServiceImport resources."
func (k *kep) usersDoNotWriteImports(t *testing.T, ctx context.Context) {
	k.members(t, ctx, "admin", "edit", "view")
	eventually(t, ctx, arrivalTimeout, "users may read imports", func() string {
		return unless(k.a.canI(ctx, k.name+"-view", "get", mcs.ServiceImportPluralName) == "yes", "they may not")
	})
	for _, role := range []string{"admin", "edit", "view"} {
		for _, verb := range []string{"create", "update", "patch", "delete"} {
			got := k.a.canI(ctx, k.name+"-"+role, verb, mcs.ServiceImportPluralName)
			expect(t, strings.HasPrefix(got, "no"), "may a user with the role %s %s imports: %q", role, verb, got)
		}
	}
}

// "The mcs-controller should be solely responsible for the lifecycle of a ServiceImport."
func (k *kep) controllerOwnsImports(t *testing.T, ctx context.Context) {
	k.export(t, ctx, k.a)
	i := k.c.awaitImport(t, ctx, k.name, k.a.cluster)
	edit(t, ctx, k.c, k.name, i, func(i *mcs.ServiceImport) { i.Spec.Ports[0].Port = webPort + 1 })
	k.spec(t, ctx, k.c, "its own port", func(s mcs.ServiceImportSpec) bool { return s.Ports[0].Port == webPort })
	k.c.delete(t, ctx, &mcs.ServiceImport{ObjectMeta: metav1.ObjectMeta{Name: k.name}})
	k.usable(t, ctx, k.a)
}

// "ServiceExportValid … will be false if the service is found to be unexportable (ExternalName, not found)."
func (k *kep) validCondition(t *testing.T, ctx context.Context) {
	t.Cleanup(func() { k.a.delete(t, ctx, newExport(k.name)) })
	k.a.create(t, ctx, newExport(k.name))
	k.a.awaitCondition(t, ctx, k.name, valid, no, string(mcs.ServiceExportReasonNoService))
	k.later(t, ctx)
	none(t, k.c.leftOf(ctx, k.name), "%s imports what does not exist", k.c.Name)
	k.serve(t, ctx, k.a)
	k.a.awaitCondition(t, ctx, k.name, valid, yes, string(mcs.ServiceExportReasonValid))
	k.a.awaitCondition(t, ctx, k.name, ready, yes, string(mcs.ServiceExportReasonExported))
	k.usable(t, ctx, k.a)
}

// "It doesn't make sense to export an ExternalName service. … an InvalidService condition will be set on the export."
func (k *kep) externalName(t *testing.T, ctx context.Context) {
	k.export(t, ctx, k.a, func(svc *corev1.Service) {
		svc.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "example.com"}
	})
	k.a.awaitCondition(t, ctx, k.name, valid, no, string(mcs.ServiceExportReasonInvalidServiceType))
	k.later(t, ctx)
	for _, s := range k.all() {
		none(t, s.leftOf(ctx, k.name), "%s imports a service of type ExternalName", s.Name)
	}
	// It is not merged with others'.
	k.export(t, ctx, k.b)
	k.usable(t, ctx, k.b)
}

// "A non-headless ServiceImport is expected to have an associated IP address, the clusterset IP, which may be
// accessed from within an importing cluster." "Requests to this IP … will route to backends for the aggregated
// Service."
func (k *kep) clusterSetIP(t *testing.T, ctx context.Context) {
	k.export(t, ctx, k.a)
	k.export(t, ctx, k.b)
	for _, s := range k.all() {
		i := s.awaitImport(t, ctx, k.name, k.a.cluster, k.b.cluster)
		expect(t, i.Spec.Type == mcs.ClusterSetIP, "%s imports a service of type %s", s.Name, i.Spec.Type)
		addr := addressIn(t, i, webPort).Addr()
		expect(t, slices.Equal(i.Spec.IPFamilies, []corev1.IPFamily{corev1.IPv4Protocol}) && addr.Is4(), "%s has the address %s of %v", s.Name, addr, i.Spec.IPFamilies)
		expect(t, s.spec.ServiceCIDR.Contains(addr), "%s has the address %s, which is not in %s", s.Name, addr, s.spec.ServiceCIDR)
	}
	k.usable(t, ctx, k.a, k.b)
}

// "This IP … is expected to be consistent for the life of a ServiceImport from the perspective of the importing cluster."
func (k *kep) clusterSetIPStays(t *testing.T, ctx context.Context) {
	k.export(t, ctx, k.a)
	before := addressIn(t, k.c.awaitImport(t, ctx, k.name, k.a.cluster), webPort)
	k.export(t, ctx, k.b, func(svc *corev1.Service) {
		svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{Name: "more", Port: webPort + 1, TargetPort: intstr.FromInt32(workload.TCPPort)})
		svc.Spec.Ports[0].Name = "web"
	})
	k.c.awaitImport(t, ctx, k.name, k.a.cluster, k.b.cluster)
	k.a.delete(t, ctx, newExport(k.name))
	k.c.awaitImport(t, ctx, k.name, k.b.cluster)
	k.c.kubectl(t, ctx, "-n", v1alpha1.Namespace, "rollout", "restart", "deployment", v1alpha1.ServicesName)
	k.c.kubectl(t, ctx, "-n", v1alpha1.Namespace, "rollout", "status", "deployment", v1alpha1.ServicesName, "--timeout="+podTimeout.String())
	k.a.create(t, ctx, newExport(k.name))
	after := addressIn(t, k.c.awaitImport(t, ctx, k.name, k.a.cluster, k.b.cluster), webPort)
	expect(t, after == before, "the address was %s, and is %s", before, after)
	checkAnswers(t, ctx, everywhere(k.c.cluster), before, slices.Concat(k.a.testers(), k.b.testers())...)
}

// "Headless services are supported and will be imported with a ServiceImport like any other ClusterIP service, but do
// not configure a VIP."
func (k *kep) headless(t *testing.T, ctx context.Context) {
	k.export(t, ctx, k.a, func(svc *corev1.Service) { svc.Spec.ClusterIP = corev1.ClusterIPNone })
	for _, s := range k.all() {
		i := s.awaitImport(t, ctx, k.name, k.a.cluster)
		made := must(s.derived(ctx, k.name))(t)
		expect(t, i.Spec.Type == mcs.Headless && len(i.Spec.IPs) == 0 && made == nil, "%s imports %+v, with the Service %v", s.Name, i.Spec, made)
	}
	// Each endpoint is another pod, and leads to it.
	var endpoints []string
	eventually(t, ctx, arrivalTimeout, "the endpoints arrive", func() string {
		all, err := k.c.slicesOf(ctx, k.name, k.a.Name)
		endpoints = lo.FlatMap(all, func(s discoveryv1.EndpointSlice, _ int) []string { return readyEndpoints(&s) })
		return unless(err == nil && len(endpoints) == len(k.a.pods), "%v: %v", endpoints, err)
	})
	var names []string
	for _, e := range endpoints {
		at := netip.AddrPortFrom(must(netip.ParseAddr(e))(t), workload.TCPPort)
		found, err := k.c.pods[0].namesAt("tcp", at, 1)
		report(t, err)
		names = append(names, found...)
	}
	slices.Sort(names)
	expect(t, slices.Equal(names, k.a.testers()), "the endpoints are %v, want %v", names, k.a.testers())
}

// "If you export a NodePort service, the resulting cross-cluster service will still be a clusterset IP type. The
// local service will not be affected. Node ports can still be used to access the cluster-local service in the source
// cluster, and only the clusterset IP will route to endpoints in remote clusters."
func (k *kep) nodePort(t *testing.T, ctx context.Context) {
	const port = 30780
	for _, of := range []corev1.ServiceType{corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer} {
		part := &kep{k.a, k.b, k.c, k.name + "-" + strings.ToLower(string(of))}
		part.exportBoth(t, ctx, func(svc *corev1.Service) {
			svc.Spec.Type = of
			if of == corev1.ServiceTypeNodePort {
				svc.Spec.Ports[0].NodePort = port
			}
		}, asIs)
		part.usable(t, ctx, k.a, k.b)
		for _, s := range k.all() {
			made := must(s.derived(ctx, part.name))(t)
			require(t, made != nil, "%s has no Service for %s", s.Name, part.name)
			expect(t, made.Spec.Type == corev1.ServiceTypeClusterIP && made.Spec.Ports[0].NodePort == 0, "%s has the Service %+v", s.Name, made.Spec)
		}
		checkAnswers(t, ctx, everywhere(k.a.cluster), k.a.localAddress(t, ctx, part.name), k.a.testers()...)
		if of == corev1.ServiceTypeNodePort {
			for _, n := range k.a.nodes {
				checkAnswers(t, ctx, []*vantage{k.a.nodes[0].vantage}, netip.AddrPortFrom(n.addr, port), k.a.testers()...)
			}
		}
	}
}

// Of ports: "This must be a DNS_LABEL." "When considering the endpoints for a Service, this must match the 'name'
// field in the EndpointPort." "Non-standard protocols should use prefixed names."
func (k *kep) portFields(t *testing.T, ctx context.Context) {
	k.export(t, ctx, k.a, func(svc *corev1.Service) {
		svc.Spec.Ports = []corev1.ServicePort{
			{Name: "one", Port: webPort, TargetPort: intstr.FromInt32(workload.TCPPort), AppProtocol: new("example.com/talk")},
			{Name: "two", Port: webPort, Protocol: corev1.ProtocolUDP, TargetPort: intstr.FromInt32(workload.UDPPort)},
		}
	})
	i := k.c.awaitImport(t, ctx, k.name, k.a.cluster)
	expect(t, portsOf(i.Spec) == `"one" TCP 80, "two" UDP 80` && lo.FromPtr(i.Spec.Ports[0].AppProtocol) == "example.com/talk", "the import says %+v", i.Spec.Ports)
	made := must(k.c.derived(ctx, k.name))(t)
	require(t, made != nil, "there is no Service")
	eventually(t, ctx, arrivalTimeout, "the slices have the ports", func() string {
		all, err := k.c.slicesOf(ctx, k.name, k.a.Name)
		for _, s := range all {
			names := lo.Map(s.Ports, func(p discoveryv1.EndpointPort, _ int) string {
				return fmt.Sprintf("%s %s %d", *p.Name, *p.Protocol, *p.Port)
			})
			slices.Sort(names)
			if want := []string{"one TCP 7000", "two UDP 7001"}; !slices.Equal(names, want) {
				return fmt.Sprintf("%v, want %v", names, want)
			}
		}
		return unless(err == nil && len(all) > 0, "%d slices: %v", len(all), err)
	})
	checkAnswersBy(t, ctx, "tcp", everywhere(k.c.cluster), addressIn(t, i, webPort), k.a.testers()...)
	checkAnswersBy(t, ctx, "udp", everywhere(k.c.cluster), addressIn(t, i, webPort), k.a.testers()...)
}

// "These EndpointSlice objects will be marked as managed by the clusterset service controller, so that the endpoint
// slice controller doesn't delete them." "A given EndpointSlice will reference its ServiceImport using the label
// multicluster.kubernetes.io/service-name." "Each imported EndpointSlice will also have a
// multicluster.kubernetes.io/source-cluster label with the cluster id."
func (k *kep) slicesHaveLabels(t *testing.T, ctx context.Context) {
	k.export(t, ctx, k.a)
	k.export(t, ctx, k.b)
	k.usable(t, ctx, k.a, k.b)
	var list discoveryv1.EndpointSliceList
	try(t, k.c.api.List(ctx, &list, client.InNamespace(k.c.namespace), client.MatchingLabels{mcs.LabelServiceName: k.name}))
	var sources []string
	for _, s := range list.Items {
		sources = append(sources, s.Labels[mcs.LabelSourceCluster])
		expect(t, s.Labels[discoveryv1.LabelManagedBy] == v1alpha1.ServicesManager, "slice %s has the labels %v", s.Name, s.Labels)
	}
	sources = slices.Compact(slices.Sorted(slices.Values(sources)))
	want := slices.Sorted(slices.Values([]string{k.a.Name, k.b.Name}))
	i := k.c.awaitImport(t, ctx, k.name, k.a.cluster, k.b.cluster)
	expect(t, i.Status.EndpointSliceObjects == mcs.EndpointSliceObjectsPresent, "the import calls its EndpointSlices %q", i.Status.EndpointSliceObjects)
	expect(t, slices.Equal(sources, want), "the slices are of the clusters %v, want %v", sources, want)
}

// "Each EndpointSlice containing only endpoints from a single source cluster." "Each slice is guaranteed to map only
// to a single source cluster."
func (k *kep) slicesOfOneCluster(t *testing.T, ctx context.Context) {
	k.export(t, ctx, k.a)
	k.export(t, ctx, k.b)
	k.usable(t, ctx, k.a, k.b)
	for _, from := range []*site{k.a, k.b} {
		known := viewOf(t, anyStatus(t, ctx, from.cluster, k.c.cluster), from.cluster, k.c.cluster)
		want := lo.Map(from.pods, func(p pod, _ int) string { return known.seenAs(t, p.IP).String() })
		all := must(k.c.slicesOf(ctx, k.name, from.Name))(t)
		got := lo.FlatMap(all, func(s discoveryv1.EndpointSlice, _ int) []string { return readyEndpoints(&s) })
		slices.Sort(got)
		slices.Sort(want)
		expect(t, slices.Equal(got, want), "the endpoints of %s are %v, want %v", from.Name, got, want)
	}
}

// "To prevent stale endpoints …, it is recommended that an implementation provide an in-cluster controller to monitor
// and remove stale endpoints."
func (k *kep) staleEndpoints(t *testing.T, ctx context.Context) {
	k.export(t, ctx, k.a)
	k.export(t, ctx, k.b)
	k.usable(t, ctx, k.a, k.b)
	to := k.at(t, ctx, k.c, webPort)
	var gateways []func()
	for _, p := range k.a.agents(t, "gateway") {
		if p.peering == k.c.Name {
			gateways = append(gateways, paused(t, p.pid))
		}
	}
	resume := sync.OnceFunc(func() {
		for _, resume := range gateways {
			resume()
		}
	})
	t.Cleanup(resume)
	require(t, len(gateways) > 0, "%s has no gateway for %s", k.a.Name, k.c.Name)
	checkAnswers(t, ctx, everywhere(k.c.cluster), to, k.b.testers()...)
	checkAnswers(t, ctx, everywhere(k.b.cluster), k.at(t, ctx, k.b, webPort), slices.Concat(k.a.testers(), k.b.testers())...)
	resume()
	checkAnswers(t, ctx, everywhere(k.c.cluster), to, slices.Concat(k.a.testers(), k.b.testers())...)
}

func sticky(svc *corev1.Service) { svc.Spec.SessionAffinity = corev1.ServiceAffinityClientIP }

func hasAffinity(want corev1.ServiceAffinity) func(mcs.ServiceImportSpec) bool {
	return func(s mcs.ServiceImportSpec) bool { return s.SessionAffinity == want }
}

// "The conflict will be resolved by assigning precedence based on each ServiceExport's creationTimestamp, from oldest
// to newest." "The derived service's session affinity will be decided according to the conflict resolution policy."
func (k *kep) conflictOldestWins(t *testing.T, ctx context.Context) {
	k.exportBoth(t, ctx, sticky, asIs)
	for _, s := range k.all() {
		k.spec(t, ctx, s, "the affinity of the oldest export", hasAffinity(corev1.ServiceAffinityClientIP))
	}
	// The younger one is the oldest one now.
	k.a.delete(t, ctx, newExport(k.name))
	for _, s := range k.all() {
		k.spec(t, ctx, s, "the affinity of the only export", hasAffinity(corev1.ServiceAffinityNone))
	}
	nextSecond()
	k.a.create(t, ctx, newExport(k.name))
	for _, s := range k.all() {
		s.awaitImport(t, ctx, k.name, k.a.cluster, k.b.cluster)
		k.spec(t, ctx, s, "the affinity of the oldest export", hasAffinity(corev1.ServiceAffinityNone))
	}
}

// "If any properties have conflicting values …, a ServiceExportConflict condition will be set on all ServiceExports
// for the conflicted service with a description of the conflict."
func (k *kep) conflictOnAllExports(t *testing.T, ctx context.Context) {
	k.exportBoth(t, ctx, asIs, sticky)
	for _, s := range []*site{k.a, k.b} {
		message := s.awaitCondition(t, ctx, k.name, conflict, yes, string(mcs.ServiceExportReasonSessionAffinityConflict))
		expect(t, message != "", "the export in %s does not describe the conflict", s.Name)
	}
	edit(t, ctx, k.b, k.name, &corev1.Service{}, func(svc *corev1.Service) {
		svc.Spec.SessionAffinity, svc.Spec.SessionAffinityConfig = corev1.ServiceAffinityNone, nil
	})
	for _, s := range []*site{k.a, k.b} {
		s.awaitCondition(t, ctx, k.name, conflict, no, string(mcs.ServiceExportReasonNoConflicts))
	}
}

// "The condition message should contain enough information to diagnose the conflict: field(s) under contention, which
// cluster won, and why."
func (k *kep) conflictMessage(t *testing.T, ctx context.Context) {
	k.exportBoth(t, ctx, sticky, asIs)
	for _, s := range []*site{k.a, k.b} {
		message := s.awaitCondition(t, ctx, k.name, conflict, yes, string(mcs.ServiceExportReasonSessionAffinityConflict))
		for _, part := range []string{k.a.Name, string(corev1.ServiceAffinityClientIP), "affinity", "old"} {
			expect(t, strings.Contains(strings.ToLower(message), strings.ToLower(part)), "the export in %s does not say %q: %s", s.Name, part, message)
		}
	}
}

// "These properties … must be consistent across all child services": each cluster resolves conflicts in the same way.
func (k *kep) sameEverywhere(t *testing.T, ctx context.Context) {
	k.exportBoth(t, ctx, sticky, func(svc *corev1.Service) {
		svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{Name: "more", Port: webPort + 1, TargetPort: intstr.FromInt32(workload.TCPPort)})
		svc.Spec.Ports[0].Name = "web"
		svc.Spec.TrafficDistribution = new(corev1.ServiceTrafficDistributionPreferClose)
	})
	specs := lo.Map(k.all(), func(s *site, _ int) string {
		spec := k.spec(t, ctx, s, "what both exports have", func(s mcs.ServiceImportSpec) bool {
			return len(s.Ports) == 2 && s.SessionAffinity == corev1.ServiceAffinityClientIP
		})
		return fmt.Sprintf("%s: %s, %s, %q, %q", spec.Type, portsOf(spec), spec.SessionAffinity, lo.FromPtr(spec.TrafficDistribution), lo.FromPtr(spec.InternalTrafficPolicy))
	})
	expect(t, len(lo.Uniq(specs)) == 1, "the clusters import %v", specs)
}

// "If the external properties of service ports for a set of exported services don't match, the clusterset service
// will expose the union of service ports declared on its constituent services."
func (k *kep) portsUnion(t *testing.T, ctx context.Context) {
	k.exportBoth(t, ctx, asIs, func(svc *corev1.Service) {
		svc.Spec.Ports[0].Name, svc.Spec.Ports[0].Port = "second", webPort+1
	})
	for _, s := range k.all() {
		k.spec(t, ctx, s, "all ports", func(s mcs.ServiceImportSpec) bool { return portsOf(s) == `"" TCP 80, "second" TCP 81` })
		checkAnswers(t, ctx, everywhere(s.cluster), k.at(t, ctx, s, webPort), k.a.testers()...)
		checkAnswers(t, ctx, everywhere(s.cluster), k.at(t, ctx, s, webPort+1), k.b.testers()...)
	}
	for _, s := range []*site{k.a, k.b} {
		s.awaitCondition(t, ctx, k.name, conflict, yes, string(mcs.ServiceExportReasonPortConflict))
	}
}

// "Have no duplicated names (including unnamed/empty name)": the older export has the name.
func (k *kep) portsByName(t *testing.T, ctx context.Context) {
	for i, name := range []string{"", "web"} {
		part := &kep{k.a, k.b, k.c, fmt.Sprintf("%s-%d", k.name, i)}
		port := func(number int32) func(*corev1.Service) {
			return func(svc *corev1.Service) { svc.Spec.Ports[0].Name, svc.Spec.Ports[0].Port = name, number }
		}
		part.exportBoth(t, ctx, port(webPort), port(webPort+1))
		for _, s := range k.all() {
			part.spec(t, ctx, s, "one port", func(s mcs.ServiceImportSpec) bool { return portsOf(s) == fmt.Sprintf("%q TCP 80", name) })
			checkAnswers(t, ctx, everywhere(s.cluster), part.at(t, ctx, s, webPort), k.a.testers()...)
		}
		for _, s := range []*site{k.a, k.b} {
			s.awaitCondition(t, ctx, part.name, conflict, yes, string(mcs.ServiceExportReasonPortConflict))
		}
	}
}

// "Two ports must not have the same protocol and port number": they are one port, with the older export's name.
func (k *kep) portsByNumber(t *testing.T, ctx context.Context) {
	name := func(name string) func(*corev1.Service) {
		return func(svc *corev1.Service) { svc.Spec.Ports[0].Name = name }
	}
	k.exportBoth(t, ctx, name("older"), name("younger"))
	for _, s := range k.all() {
		k.spec(t, ctx, s, "one port", func(s mcs.ServiceImportSpec) bool { return portsOf(s) == `"older" TCP 80` })
	}
	k.usable(t, ctx, k.a, k.b)
	for _, s := range []*site{k.a, k.b} {
		s.awaitCondition(t, ctx, k.name, conflict, yes, string(mcs.ServiceExportReasonPortConflict))
	}
}

// "Whether or not a derived service is headless will be decided according to the conflict resolution policy."
func (k *kep) headlessnessConflict(t *testing.T, ctx context.Context) {
	is := func(want mcs.ServiceImportType) func(mcs.ServiceImportSpec) bool {
		return func(s mcs.ServiceImportSpec) bool {
			return s.Type == want && (len(s.IPs) == 0) == (want == mcs.Headless)
		}
	}
	k.exportBoth(t, ctx, func(svc *corev1.Service) { svc.Spec.ClusterIP = corev1.ClusterIPNone }, asIs)
	for _, s := range k.all() {
		k.spec(t, ctx, s, "the type of the oldest export", is(mcs.Headless))
	}
	for _, s := range []*site{k.a, k.b} {
		s.awaitCondition(t, ctx, k.name, conflict, yes, string(mcs.ServiceExportReasonTypeConflict))
	}
	k.a.delete(t, ctx, newExport(k.name))
	for _, s := range k.all() {
		k.spec(t, ctx, s, "the type of the only export", is(mcs.ClusterSetIP))
	}
	k.usable(t, ctx, k.b)
	k.b.awaitCondition(t, ctx, k.name, conflict, no, string(mcs.ServiceExportReasonNoConflicts))
}

// Traffic policies of the API's newer versions follow the conflict resolution policy, too.
func (k *kep) trafficPolicies(t *testing.T, ctx context.Context) {
	k.exportBoth(t, ctx, func(svc *corev1.Service) {
		svc.Spec.TrafficDistribution = new(corev1.ServiceTrafficDistributionPreferClose)
	}, func(svc *corev1.Service) {
		svc.Spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyLocal)
	})
	for _, s := range k.all() {
		k.spec(t, ctx, s, "the policies of the oldest export", func(s mcs.ServiceImportSpec) bool {
			return lo.FromPtr(s.TrafficDistribution) == corev1.ServiceTrafficDistributionPreferClose && lo.FromPtr(s.InternalTrafficPolicy) == corev1.ServiceInternalTrafficPolicyCluster
		})
	}
	reasons := fmt.Sprintf("%s,%s", mcs.ServiceExportReasonInternalTrafficPolicyConflict, mcs.ServiceExportReasonTrafficDistributionConflict)
	for _, s := range []*site{k.a, k.b} {
		s.awaitCondition(t, ctx, k.name, conflict, yes, reasons)
	}
	// Each value that a Service can have arrives, and kube-proxy uses zones only if each ready endpoint has one.
	for _, value := range []string{
		corev1.ServiceTrafficDistributionPreferSameZone, corev1.ServiceTrafficDistributionPreferSameNode, corev1.ServiceTrafficDistributionPreferClose,
	} {
		edit(t, ctx, k.a, k.name, &corev1.Service{}, func(svc *corev1.Service) { svc.Spec.TrafficDistribution = &value })
		for _, s := range k.all() {
			k.spec(t, ctx, s, value, func(s mcs.ServiceImportSpec) bool { return lo.FromPtr(s.TrafficDistribution) == value })
		}
		eventually(t, ctx, arrivalTimeout, "the endpoints have zones", func() string {
			all, err := k.c.slicesOf(ctx, k.name, "")
			endpoints := lo.FlatMap(all, func(s discoveryv1.EndpointSlice, _ int) []discoveryv1.Endpoint { return s.Endpoints })
			haveZones := lo.EveryBy(endpoints, func(e discoveryv1.Endpoint) bool { return e.Hints != nil && len(e.Hints.ForZones) > 0 })
			return unless(err == nil && len(endpoints) > 0 && haveZones, "%+v: %v", endpoints, err)
		})
	}
	k.usable(t, ctx, k.a, k.b)
}

// Labels and annotations that an export names are on the import, with those of the oldest one in a conflict.
func (k *kep) exportedLabels(t *testing.T, ctx context.Context) {
	const private = "example.com/private" // of the Service and of the export itself
	for _, s := range []*site{k.a, k.b} {
		k.serve(t, ctx, s, func(svc *corev1.Service) {
			svc.Labels, svc.Annotations = map[string]string{private: "service"}, map[string]string{private: "service"}
		})
		e := newExport(k.name)
		e.Labels, e.Annotations = map[string]string{private: "export"}, map[string]string{private: "export"}
		e.Spec.ExportedLabels, e.Spec.ExportedAnnotations = map[string]string{"team": s.Name}, map[string]string{"example.com/note": s.Name}
		s.create(t, ctx, e)
		nextSecond()
	}
	for _, s := range k.all() {
		i := s.awaitImport(t, ctx, k.name, k.a.cluster, k.b.cluster)
		expect(t, i.Labels["team"] == k.a.Name && i.Annotations["example.com/note"] == k.a.Name, "%s has the import with %v and %v", s.Name, i.Labels, i.Annotations)
		expect(t, i.Labels[private]+i.Annotations[private] == "", "%s has what nobody has exported: %v and %v", s.Name, i.Labels, i.Annotations)
	}
	reasons := fmt.Sprintf("%s,%s", mcs.ServiceExportReasonAnnotationsConflict, mcs.ServiceExportReasonLabelsConflict)
	for _, s := range []*site{k.a, k.b} {
		s.awaitCondition(t, ctx, k.name, conflict, yes, reasons)
	}
}

// "Test cluster A local service not impacted by same-name imported service." "Change behavior of single cluster
// services in any way" is no goal.
func (k *kep) localServiceUnchanged(t *testing.T, ctx context.Context) {
	k.serve(t, ctx, k.c)
	local := k.c.localAddress(t, ctx, k.name)
	checkAnswers(t, ctx, everywhere(k.c.cluster), local, k.c.testers()...)
	before := &corev1.Service{}
	try(t, k.c.api.Get(ctx, k.c.key(k.name), before))
	k.export(t, ctx, k.a)
	to := addressIn(t, k.c.awaitImport(t, ctx, k.name, k.a.cluster), webPort)
	checkAnswers(t, ctx, everywhere(k.c.cluster), to, k.a.testers()...)
	checkAnswers(t, ctx, everywhere(k.c.cluster), local, k.c.testers()...)
	after := &corev1.Service{}
	try(t, k.c.api.Get(ctx, k.c.key(k.name), after))
	expect(t, after.ResourceVersion == before.ResourceVersion, "the cluster's own Service was written: %+v", after)
}

// "The cluster id should be consistent for the life of a cluster and its membership in the clusterset."
func (k *kep) clusterIDStays(t *testing.T, ctx context.Context) {
	k.export(t, ctx, k.a)
	k.c.awaitImport(t, ctx, k.name, k.a.cluster)
	r := liqonet(t, ctx, "", "services", "enable", k.a.Name, k.c.Name, "--cluster-id", k.a.Name+"=another")
	r.refused(t, exitUsage)
	expect(t, strings.Contains(r.stderr, k.a.Name), "the error does not name the cluster:\n%s", r.stderr)
	mustLiqonet(t, ctx, "services", "enable", k.a.Name, k.c.Name)
	k.usable(t, ctx, k.a)
}

// "Implementations should treat id mutation as a delete of the membership followed by recreation with the new name."
func (k *kep) clusterIDChange(t *testing.T, ctx context.Context) {
	const another = "another"
	k.export(t, ctx, k.a)
	k.usable(t, ctx, k.a)
	others := lo.Without(fx.clusters, k.a.cluster, k.c.cluster)
	together(t, ctx, lo.Map(others, func(c *cluster, _ int) []string { return []string{"services", "disable", k.a.Name, c.Name} })...)
	k.b.awaitGone(t, ctx, arrivalTimeout, k.name)
	mustLiqonet(t, ctx, "services", "enable", k.a.Name, k.c.Name, "--cluster-id", k.a.Name+"="+another)
	renamed := &cluster{Cluster: &workload.Cluster{Name: another}}
	to := addressIn(t, k.c.awaitImport(t, ctx, k.name, renamed), webPort)
	checkAnswers(t, ctx, everywhere(k.c.cluster), to, k.a.testers()...)
	eventually(t, ctx, arrivalTimeout, "the slices have the new ID", func() string {
		before, err := k.c.slicesOf(ctx, k.name, k.a.Name)
		now, errNow := k.c.slicesOf(ctx, k.name, another)
		return unless(err == nil && errNow == nil && len(before) == 0 && len(now) > 0, "%d have the old one, %d the new one: %v, %v", len(before), len(now), err, errNow)
	})
}
