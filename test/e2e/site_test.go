package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/samber/lo"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/services"
	"github.com/liqonet/liqonet/test/lab"
	"github.com/liqonet/liqonet/test/workload"
)

const (
	// shop is the namespace in which tests have services of their own.
	shop = "e2e-services"
	// webPort is the port of these services, unless they say otherwise.
	webPort = 80
	// arrivalTimeout is how long a change in one cluster may take until it counts in another one: as long as the
	// conformance tests of the Multi-Cluster Services API wait.
	arrivalTimeout = 20 * time.Second
	// connectTimeout is for one connection to a service. What is not answered by then is tried again.
	connectTimeout = 2 * time.Second
	// triesPerPod is how often a service is called for each of its pods, so that each of them is seen.
	triesPerPod = 20
)

// site is a namespace of a cluster, in which a test has services.
type site struct {
	*cluster
	api       client.WithWatch
	namespace string
}

func newSite(t testing.TB, c *cluster, namespace string) *site {
	t.Helper()
	cfg := must(c.restConfig())(t)
	kinds := runtime.NewScheme()
	try(t, errors.Join(scheme.AddToScheme(kinds), mcs.AddToScheme(kinds), v1alpha1.AddToScheme(kinds)))
	ctrllog.SetLogger(logr.Discard()) // or it warns that there is none
	return &site{c, must(client.NewWithWatch(cfg, client.Options{Scheme: kinds}))(t), namespace}
}

// in returns another namespace of the same cluster.
func (s *site) in(namespace string) *site { return &site{s.cluster, s.api, namespace} }

func (s *site) key(name string) client.ObjectKey {
	return client.ObjectKey{Namespace: s.namespace, Name: name}
}

// makeNamespaces creates the sites' namespaces. They are removed with everything in them when the test calls what is
// returned, or when it ends.
func makeNamespaces(t testing.TB, ctx context.Context, sites ...*site) (remove func()) {
	t.Helper()
	for _, s := range sites {
		try(t, s.api.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.namespace}}))
	}
	remove = sync.OnceFunc(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), testTimeout)
		defer cancel()
		var all sync.WaitGroup
		for _, s := range sites {
			all.Go(func() {
				report(t, errOf(s.Run(ctx, "", "delete", "namespace", s.namespace, "--ignore-not-found", "--timeout="+podTimeout.String())))
			})
		}
		all.Wait()
	})
	t.Cleanup(remove)
	return remove
}

// create creates objects in the namespace.
func (s *site) create(t testing.TB, ctx context.Context, objects ...client.Object) {
	t.Helper()
	for _, o := range objects {
		o.SetNamespace(s.namespace)
		if err := s.api.Create(ctx, o); err != nil {
			t.Fatalf("%s: create %T %s: %v", s.Name, o, o.GetName(), err)
		}
	}
}

// delete deletes objects of the namespace, which may be gone.
func (s *site) delete(t testing.TB, ctx context.Context, objects ...client.Object) {
	t.Helper()
	for _, o := range objects {
		o.SetNamespace(s.namespace)
		report(t, kube.IgnoreAbsent(s.api.Delete(ctx, o)))
	}
}

// edit changes an object of a site, which others may write at the same time.
func edit[T client.Object](t testing.TB, ctx context.Context, s *site, name string, obj T, do func(T)) {
	t.Helper()
	eventually(t, ctx, callTimeout, fmt.Sprintf("%s: change %T %s", s.Name, obj, name), func() string {
		if err := s.api.Get(ctx, s.key(name), obj); err != nil {
			return err.Error()
		}
		do(obj)
		return why(s.api.Update(ctx, obj))
	})
}

// scale changes how many pods a Deployment has.
func (s *site) scale(t testing.TB, ctx context.Context, name string, replicas int) {
	t.Helper()
	s.kubectl(t, ctx, "-n", s.namespace, "scale", "deployment", name, fmt.Sprintf("--replicas=%d", replicas))
}

// testerPod is the template of pods that answer by their names.
func testerPod(app string) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": app}},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: new(int64(0)),
			Containers: []corev1.Container{{
				Name: "tester", Image: lab.TesterImage, ImagePullPolicy: corev1.PullIfNotPresent,
				Args: []string{
					"serve", "-tcp", fmt.Sprintf(":%d", workload.TCPPort), "-udp", fmt.Sprintf(":%d", workload.UDPPort), "-http", fmt.Sprintf(":%d", workload.HTTPPort),
				},
				Ports: []corev1.ContainerPort{
					{Name: "talk", ContainerPort: workload.TCPPort}, {Name: "echo", ContainerPort: workload.UDPPort, Protocol: corev1.ProtocolUDP},
					{Name: "web", ContainerPort: workload.HTTPPort},
				},
				ReadinessProbe: listens(workload.TCPPort),
			}},
		},
	}
}

// listens is a probe for pods that are ready when they listen at a port.
func listens(port int32) *corev1.Probe {
	return &corev1.Probe{ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(port)}}, PeriodSeconds: 1}
}

func selects(app string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
}

// newDeployment runs such pods.
func newDeployment(name string, replicas int32) *appsv1.Deployment {
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       appsv1.DeploymentSpec{Replicas: &replicas, Selector: selects(name), Template: testerPod(name)},
	}
}

// newService leads to the pods of the application with its name, by default from webPort to their TCP server.
func newService(name string, ports ...corev1.ServicePort) *corev1.Service {
	if len(ports) == 0 {
		ports = []corev1.ServicePort{{Port: webPort, TargetPort: intstr.FromInt32(workload.TCPPort)}}
	}
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.ServiceSpec{Selector: map[string]string{"app": name}, Ports: ports},
	}
}

// withoutSelector returns a Service whose endpoints are those of a slice, and the slice.
func withoutSelector(name string, targetPort int32, addresses ...netip.Addr) (*corev1.Service, *discoveryv1.EndpointSlice) {
	svc := newService(name)
	svc.Spec.Selector = nil
	return svc, &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new(""), Protocol: new(corev1.ProtocolTCP), Port: &targetPort}},
		Endpoints: lo.Map(addresses, func(a netip.Addr, _ int) discoveryv1.Endpoint {
			return discoveryv1.Endpoint{Addresses: []string{a.String()}, Conditions: discoveryv1.EndpointConditions{Ready: new(true)}}
		}),
	}
}

func newExport(name string) *mcs.ServiceExport {
	return &mcs.ServiceExport{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

// awaitPods waits until an application has so many pods, all of them ready, and returns their names.
func (s *site) awaitPods(t testing.TB, ctx context.Context, app string, number int) (names []string) {
	t.Helper()
	eventually(t, ctx, podTimeout, fmt.Sprintf("%s runs %d pods of %s", s.Name, number, app), func() string {
		var list corev1.PodList
		if err := s.api.List(ctx, &list, client.InNamespace(s.namespace), client.MatchingLabels{"app": app}); err != nil {
			return err.Error()
		}
		names = lo.FilterMap(list.Items, func(p corev1.Pod, _ int) (string, bool) {
			isReady := lo.ContainsBy(p.Status.Conditions, func(c corev1.PodCondition) bool {
				return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
			})
			return p.Name, isReady && p.DeletionTimestamp.IsZero()
		})
		return unless(len(names) == number && len(list.Items) == number, "%d of %d pods are ready", len(names), len(list.Items))
	})
	slices.Sort(names)
	return names
}

// testers are the names of the test pods.
func (c *cluster) testers() []string {
	return slices.Sorted(slices.Values(lo.Map(c.pods, func(p pod, _ int) string { return p.Pod.Name })))
}

// everywhere are the test pods and the nodes of clusters.
func everywhere(clusters ...*cluster) (out []*vantage) {
	for _, c := range clusters {
		for i := range c.nodes {
			out = append(out, c.pods[i].vantage, c.nodes[i].vantage)
		}
	}
	return out
}

// askService asks a server of a test pod by the address of a service, in the namespace of the thread.
func askService(protocol string, to netip.AddrPort, timeout time.Duration) (answer, error) {
	conn, err := net.DialTimeout(lo.Ternary(protocol == "udp", "udp", "tcp"), to.String(), timeout)
	if err != nil {
		return answer{}, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(timeout)); err != nil {
		return answer{}, err
	}
	switch protocol {
	case "udp":
		return askUDP(conn)
	case "http":
		return askHTTP(conn)
	}
	c, err := greet(conn)
	if err != nil {
		return answer{}, err
	}
	return c.greeting, c.echo(payload)
}

// namesAt returns the names of the pods that answer so many calls of a service.
func (v *vantage) namesAt(protocol string, to netip.AddrPort, calls int) (names []string, err error) {
	err = v.do(func() error {
		for range calls {
			a, err := askService(protocol, to, connectTimeout)
			if err != nil {
				return err
			}
			names = append(names, a.hostname)
		}
		return nil
	})
	return slices.Compact(slices.Sorted(slices.Values(names))), err
}

// checkAnswers waits until just these pods answer at the address of a service, wherever it is called from.
func checkAnswers(t testing.TB, ctx context.Context, from []*vantage, to netip.AddrPort, want ...string) {
	t.Helper()
	checkAnswersBy(t, ctx, "tcp", from, to, want...)
}

func checkAnswersBy(t testing.TB, ctx context.Context, protocol string, from []*vantage, to netip.AddrPort, want ...string) {
	t.Helper()
	want = slices.Sorted(slices.Values(want))
	require(t, len(want) > 0, "nobody is to answer at %s", to)
	for _, v := range from {
		eventually(t, ctx, arrivalTimeout, fmt.Sprintf("%s calls %s %s", v, protocol, to), func() string {
			names, err := v.namesAt(protocol, to, triesPerPod*len(want))
			return unless(err == nil && slices.Equal(names, want), "%v answer, want %v: %v", names, want, err)
		})
	}
}

// checkUnanswered waits until nobody answers at the address of a service.
func checkUnanswered(t testing.TB, ctx context.Context, from []*vantage, to netip.AddrPort) {
	t.Helper()
	for _, v := range from {
		eventually(t, ctx, arrivalTimeout, fmt.Sprintf("nobody answers %s at %s", v, to), func() string {
			var a answer
			err := v.do(func() (err error) {
				a, err = askService("tcp", to, shortTimeout)
				return err
			})
			return unless(err != nil, "%s answers", a.hostname)
		})
	}
}

// imported returns an import, nil if there is none.
func (s *site) imported(ctx context.Context, name string) (*mcs.ServiceImport, error) {
	i := &mcs.ServiceImport{}
	err := s.api.Get(ctx, s.key(name), i)
	if kube.IsNotFound(err) {
		return nil, nil
	}
	return i, err
}

// awaitImport waits until a service is imported, from just these clusters, and can be used.
func (s *site) awaitImport(t testing.TB, ctx context.Context, name string, from ...*cluster) (i *mcs.ServiceImport) {
	t.Helper()
	want := slices.Sorted(slices.Values(namesOf(from)))
	found := false
	eventually(t, ctx, arrivalTimeout, fmt.Sprintf("%s imports %s/%s", s.Name, s.namespace, name), func() string {
		var err error
		if i, err = s.imported(ctx, name); err != nil || i == nil {
			return fmt.Sprintf("there is no import: %v", err)
		}
		clusters := lo.Map(i.Status.Clusters, func(c mcs.ClusterStatus, _ int) string { return c.Cluster })
		slices.Sort(clusters)
		found = slices.Equal(clusters, want) && meta.IsStatusConditionTrue(i.Status.Conditions, string(mcs.ServiceImportConditionReady))
		return unless(found, "it is imported from %v, want %v: %+v", clusters, want, i.Status.Conditions)
	})
	if !found {
		t.FailNow()
	}
	return i
}

// addressIn is where an import is called.
func addressIn(t testing.TB, i *mcs.ServiceImport, port uint16) netip.AddrPort {
	t.Helper()
	require(t, len(i.Spec.IPs) == 1, "import %s/%s has the addresses %v, want one", i.Namespace, i.Name, i.Spec.IPs)
	return netip.AddrPortFrom(must(netip.ParseAddr(i.Spec.IPs[0]))(t), port)
}

// localAddress is that of a Service of the cluster itself.
func (s *site) localAddress(t testing.TB, ctx context.Context, name string) netip.AddrPort {
	t.Helper()
	svc := &corev1.Service{}
	try(t, s.api.Get(ctx, s.key(name), svc))
	return netip.AddrPortFrom(must(netip.ParseAddr(svc.Spec.ClusterIP))(t), uint16(svc.Spec.Ports[0].Port))
}

// derived returns the Service that stands for an import, nil if there is none.
func (s *site) derived(ctx context.Context, name string) (*corev1.Service, error) {
	svc := &corev1.Service{}
	err := s.api.Get(ctx, s.key(services.Key{Namespace: s.namespace, Name: name}.DerivedName()), svc)
	if kube.IsNotFound(err) {
		return nil, nil
	}
	return svc, err
}

// slicesOf returns the EndpointSlices of an import, from one cluster or, without a name, from all.
func (s *site) slicesOf(ctx context.Context, name, source string) ([]discoveryv1.EndpointSlice, error) {
	labels := client.MatchingLabels{discoveryv1.LabelManagedBy: v1alpha1.ServicesManager, mcs.LabelServiceName: name}
	if source != "" {
		labels[mcs.LabelSourceCluster] = source
	}
	var list discoveryv1.EndpointSliceList
	err := s.api.List(ctx, &list, client.InNamespace(s.namespace), labels)
	return list.Items, err
}

// leftOf says what there is of an import.
func (s *site) leftOf(ctx context.Context, name string) string {
	i, err := s.imported(ctx, name)
	svc, errService := s.derived(ctx, name)
	made, errSlices := s.slicesOf(ctx, name, "")
	if err := errors.Join(err, errService, errSlices); err != nil {
		return err.Error()
	}
	return unless(i == nil && svc == nil && len(made) == 0, "an import: %t, a Service: %t, and %d EndpointSlices", i != nil, svc != nil, len(made))
}

// awaitGone waits until nothing is left of an import.
func (s *site) awaitGone(t testing.TB, ctx context.Context, within time.Duration, name string) {
	t.Helper()
	eventually(t, ctx, within, fmt.Sprintf("%s has nothing of the import %s/%s", s.Name, s.namespace, name), func() string { return s.leftOf(ctx, name) })
}

// awaitCondition waits until a condition of an export has a status and a reason, and returns its message.
func (s *site) awaitCondition(t testing.TB, ctx context.Context, name, condition string, status metav1.ConditionStatus, reason string) (message string) {
	t.Helper()
	eventually(t, ctx, arrivalTimeout, fmt.Sprintf("%s: export %s/%s is %s=%s", s.Name, s.namespace, name, condition, status), func() string {
		e := &mcs.ServiceExport{}
		if err := s.api.Get(ctx, s.key(name), e); err != nil {
			return err.Error()
		}
		c := meta.FindStatusCondition(e.Status.Conditions, condition)
		if c == nil {
			return "it has no such condition"
		}
		message = c.Message
		return unless(c.Status == status && c.Reason == reason, "%s=%s, %s, want %s: %s", condition, c.Status, c.Reason, reason, c.Message)
	})
	return message
}

// The conditions of exports, by short names.
const (
	valid, ready, conflict = string(mcs.ServiceExportConditionValid), string(mcs.ServiceExportConditionReady), string(mcs.ServiceExportConditionConflict)
	yes, no                = metav1.ConditionTrue, metav1.ConditionFalse
)

// sliceLog has what a watch has shown of the EndpointSlices of imports.
type sliceLog struct {
	mu sync.Mutex
	// endpoints are the ready endpoints of each slice, by the service.
	endpoints map[string]map[string][]string
	changes   []sliceChange
	// ended is why nothing is logged any more.
	ended error
}

// sliceChange is which ready endpoints a service has since some time.
type sliceChange struct {
	at      time.Time
	service string
	ready   []string
}

// logSlices logs the EndpointSlices that come from a cluster, until the test ends.
func (s *site) logSlices(t testing.TB, ctx context.Context, from *cluster) *sliceLog {
	t.Helper()
	l := &sliceLog{endpoints: map[string]map[string][]string{}}
	// It begins with those that are there.
	w := must(s.api.Watch(ctx, &discoveryv1.EndpointSliceList{}, client.InNamespace(s.namespace), client.MatchingLabels{
		discoveryv1.LabelManagedBy: v1alpha1.ServicesManager, mcs.LabelSourceCluster: from.Name,
	}))(t)
	t.Cleanup(w.Stop)
	go func() {
		for e := range w.ResultChan() {
			l.add(e, time.Now())
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		l.ended = errors.Join(l.ended, errors.New("the watch has ended"))
	}()
	return l
}

func (l *sliceLog) add(e watch.Event, at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	slice, is := e.Object.(*discoveryv1.EndpointSlice)
	if !is {
		l.ended = fmt.Errorf("the watch says %s: %v", e.Type, e.Object)
		return
	}
	service := slice.Labels[mcs.LabelServiceName]
	if l.endpoints[service] == nil {
		l.endpoints[service] = map[string][]string{}
	}
	delete(l.endpoints[service], slice.Name)
	if e.Type != watch.Deleted {
		l.endpoints[service][slice.Name] = readyEndpoints(slice)
	}
	all := lo.Flatten(lo.Values(l.endpoints[service]))
	slices.Sort(all)
	l.changes = append(l.changes, sliceChange{at, service, all})
}

// readyEndpoints returns the addresses of a slice's ready endpoints.
func readyEndpoints(slice *discoveryv1.EndpointSlice) []string {
	return lo.FlatMap(slice.Endpoints, func(e discoveryv1.Endpoint, _ int) []string {
		return lo.Ternary(lo.FromPtrOr(e.Conditions.Ready, true), e.Addresses, nil)
	})
}

// first returns for each service how long after a time its ready endpoints were first as wanted.
func (l *sliceLog) first(after time.Time, isWanted func(ready []string) bool) map[string]time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := map[string]time.Duration{}
	for _, c := range l.changes {
		if _, has := out[c.service]; !has && c.at.After(after) && isWanted(c.ready) {
			out[c.service] = c.at.Sub(after)
		}
	}
	return out
}

// check fails the test if something may have been missed.
func (l *sliceLog) check(t testing.TB) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	report(t, l.ended)
}

func isEmpty(ready []string) bool  { return len(ready) == 0 }
func isFilled(ready []string) bool { return len(ready) > 0 }

// quantile returns the lowest duration that so large a part of all does not exceed.
func quantile(all []time.Duration, part float64) time.Duration {
	sorted := slices.Sorted(slices.Values(all))
	return sorted[max(0, int(math.Ceil(part*float64(len(sorted))))-1)]
}

// contents are the product's objects in clusters, without what changes by itself.
func contents(t testing.TB, ctx context.Context, clusters ...*cluster) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, c := range clusters {
		objects := must(c.objects(ctx, managed))(t)
		for name, u := range objects {
			isOfService := u.GetKind() == "EndpointSlice" && u.GetLabels()[discoveryv1.LabelManagedBy] != v1alpha1.ServicesManager
			if !passing(u) && !isOfService && !slices.Contains([]string{"Pod", "PodMetrics", "ReplicaSet", "ControllerRevision", "Endpoints"}, u.GetKind()) {
				out[c.Name+": "+name] = content(u)
			}
		}
	}
	return out
}

// content is what somebody has written into an object, apart from agents.
func content(u *unstructured.Unstructured) string {
	if u.GetKind() == "NodeNetwork" || strings.HasPrefix(u.GetName(), v1alpha1.HistoryPrefix) {
		return ""
	}
	u = u.DeepCopy()
	unstructured.RemoveNestedField(u.Object, "status")
	for _, field := range []string{"resourceVersion", "generation", "managedFields", "uid", "creationTimestamp"} {
		unstructured.RemoveNestedField(u.Object, "metadata", field)
	}
	raw, err := json.Marshal(u)
	if err != nil {
		return err.Error()
	}
	return string(raw)
}

// exchangeView is the part of status -o json about services.
type exchangeView struct {
	Cluster, Peer string
	Services      *struct{ Exported, Received, Imported, Withdrawn int }
}

// exchangeOf is what a cluster says of the exchange with a peer.
func exchangeOf(t testing.TB, ctx context.Context, c, peer *cluster) string {
	t.Helper()
	var doc struct{ Peerings []exchangeView }
	try(t, json.Unmarshal([]byte(statusDocument(t, ctx, c, peer).stdout), &doc))
	for _, v := range doc.Peerings {
		if v.Cluster == c.Name && v.Peer == peer.Name && v.Services != nil {
			return fmt.Sprintf("%+v", *v.Services)
		}
	}
	return "none"
}

// openService opens a connection to a service, until the test ends.
func openService(t testing.TB, from *vantage, to netip.AddrPort) (c *connection) {
	t.Helper()
	try(t, from.do(func() error {
		conn, err := net.DialTimeout("tcp", to.String(), callTimeout)
		if err != nil {
			return err
		}
		t.Cleanup(func() { conn.Close() })
		if err := conn.SetDeadline(time.Now().Add(callTimeout)); err != nil {
			return err
		}
		c, err = greet(conn)
		return err
	}))
	return c
}

// serviceTraffic are calls of a service from pods and nodes of a cluster, by so many callers at each place, over a new
// connection each time.
func serviceTraffic(c *cluster, to netip.AddrPort, callers int) (out []stream) {
	for _, v := range everywhere(c) {
		for i := range callers {
			out = append(out, stream{fmt.Sprintf("caller %d at %s", i, v), v, fresh(func() error { return errOf(askService("tcp", to, callTimeout)) })})
		}
	}
	return out
}

// end ends the probing. It returns how often its streams were asked, and what failed.
func (p *probing) end() (asked int, failures []string) {
	p.cancel()
	p.wg.Wait()
	return lo.Sum(lo.Values(p.asked)), p.failures
}
