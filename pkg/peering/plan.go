package peering

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/discovery"
	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/manifests"
)

// Plan is all that Peer does with two clusters, and why: a value that is made
// from what is known of both by a pure function. Same facts, same plan.
type Plan struct {
	Clusters [2]ClusterPlan `json:"clusters"`
}

// ClusterPlan is the part of a plan that is done in one cluster.
type ClusterPlan struct {
	Cluster   string `json:"cluster"`
	ClusterID string `json:"clusterID"`
	Peer      string `json:"peer"`
	// Facts are what is known of the cluster.
	Facts []Statement `json:"facts"`
	// Choices are what was decided for it.
	Choices []Statement `json:"choices"`
	// Ranges are those that it uses itself, and by which it knows the peer.
	Ranges []RangePlan `json:"ranges"`
	// Keys are the Secrets with the keys of the gateway. What is in them is never
	// part of a plan.
	Keys []Statement `json:"keys"`
	// Endpoints are where the gateway is called by the peer's one.
	Endpoints []Statement `json:"endpoints,omitempty"`
	// Objects are in the order in which they are made.
	Objects []ObjectPlan `json:"objects"`
	// Warnings are things that do no harm to the peering.
	Warnings []string `json:"warnings,omitempty"`

	ledger  *v1alpha1.ClusterNetwork
	decided decided
	gateway manifests.Gateway
	service *corev1.Service
	peering *v1alpha1.Peering
	// translation is for the Peering's status.
	translation *v1alpha1.Translation
	// stale is a Service of an earlier role.
	stale *corev1.Service
}

// Statement is a value, and where it is from or why it is this one.
type Statement struct {
	What   string `json:"what"`
	Value  string `json:"value"`
	Reason string `json:"reason"`
	// Assumed says that it was concluded and not read. What only the node agents
	// know is assumed as long as they have not reported.
	Assumed bool `json:"assumed,omitempty"`
	// DuringRun says that the value comes about when the plan is carried out.
	DuringRun bool `json:"duringRun,omitempty"`
}

// RangePlan is a range, and by which the cluster knows it.
type RangePlan struct {
	What    string       `json:"what"`
	Real    netip.Prefix `json:"real"`
	Mapped  netip.Prefix `json:"mapped"`
	Reason  string       `json:"reason"`
	Assumed bool         `json:"assumed,omitempty"`
}

// Action is what is done with an object.
type Action string

// The actions.
const (
	Create Action = "create"
	Change Action = "change"
	Keep   Action = "keep"
	Delete Action = "delete"
	// Unclear is for an object that the user may not read.
	Unclear Action = "unclear"
)

// ObjectPlan is an object as it will be. What comes about during the run is
// named in angle brackets.
type ObjectPlan struct {
	Action     Action `json:"action"`
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Namespace  string `json:"namespace,omitempty"`
	Name       string `json:"name"`
	// MadeBy is who makes it, if it is not the command itself.
	MadeBy string `json:"madeBy,omitempty"`
	Reason string `json:"reason"`
	// Manifest is what is applied: fields that are left out are the API server's or
	// somebody else's. A Secret has no data here.
	Manifest map[string]any `json:"manifest,omitempty"`
}

// Changes counts the objects that are not kept.
func (p *Plan) Changes() int {
	n := 0
	for _, c := range p.Clusters {
		for _, o := range c.Objects {
			if o.Action != Keep {
				n++
			}
		}
	}
	return n
}

// makePlan is pure: what is known of both clusters in, all that is to be done
// out.
func makePlan(a, b *side, o Options) (*Plan, error) {
	p := &Plan{}
	sides := [2]*side{a, b}
	planned := [2]*side{}
	for i, s := range sides {
		peer, c := sides[1-i], &p.Clusters[i]
		*c = ClusterPlan{Cluster: s.Name, ClusterID: s.ID, Peer: peer.Name, Facts: s.statements(), Warnings: s.facts.Warnings}
		if err := c.planLedger(s, peer); err != nil {
			return nil, err
		}
		planned[i] = s.with(c.ledger)
	}
	forA, forB, err := decide(a, b, o)
	if err != nil {
		return nil, err
	}
	for i, d := range []decided{forA, forB} {
		p.Clusters[i].planGateway(planned[i], planned[1-i], d, o)
	}
	for i, d := range []decided{forA, forB} {
		c, peer := &p.Clusters[i], &p.Clusters[1-i]
		if c.peering, err = planPeering(planned[i], planned[1-i], d, peer); err != nil {
			return nil, err
		}
		if c.translation, err = planTranslation(planned[i], planned[1-i]); err != nil {
			return nil, err
		}
		if err := c.planObjects(planned[i]); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// with is the side with another ledger.
func (s *side) with(cn *v1alpha1.ClusterNetwork) *side {
	return &side{
		Cluster: s.Cluster, facts: s.facts, internal: s.internal, internalReason: s.internalReason, nodes: s.nodes, ledger: cn,
		existing: s.existing, others: s.others, apiServer: s.apiServer, publicKey: s.publicKey, overlayKey: s.overlayKey, image: s.image, imageReason: s.imageReason,
		service: s.service, endpoints: s.endpoints, wish: s.wish,
	}
}

// statements are the facts of a cluster as the plan shows them.
func (s *side) statements() []Statement {
	f := s.facts
	var out []Statement
	for _, of := range []struct {
		what  string
		facts []discovery.Fact[netip.Prefix]
	}{
		{"pod range", f.PodCIDRs}, {"service range", f.ServiceCIDRs}, {"node range", f.NodeCIDRs}, {"reserved range", f.Reserved},
	} {
		for _, fact := range of.facts {
			out = append(out, Statement{What: of.what, Value: fact.Value.String(), Reason: fact.Source, Assumed: fact.Assumed})
		}
	}
	for _, x := range []struct {
		what string
		fact discovery.Fact[string]
	}{
		{"network plugin", f.CNI},
		{"provider", f.Provider},
		{"load balancers", discovery.Fact[string]{Value: string(f.Exposure.LoadBalancer.Value), Source: f.Exposure.LoadBalancer.Source, Assumed: f.Exposure.LoadBalancer.Assumed}},
	} {
		if x.fact.Value == "" {
			x.fact.Value = "unknown"
		}
		out = append(out, Statement{What: x.what, Value: x.fact.Value, Reason: x.fact.Source, Assumed: x.fact.Assumed})
	}
	if missing := s.unreported(); len(missing) > 0 {
		return append(out, Statement{
			What: "routes and kernels of nodes", Value: "nothing in the way", Assumed: true,
			Reason: "only node agents know them, and those of " + strings.Join(missing, ", ") + " have not reported yet",
		})
	}
	routes := map[netip.Prefix][]string{}
	for _, n := range s.nodes {
		for _, r := range n.Status.Routes {
			routes[r.Prefix] = append(routes[r.Prefix], n.Spec.NodeName)
		}
	}
	prefixes := make([]netip.Prefix, 0, len(routes))
	for r := range routes {
		prefixes = append(prefixes, r)
	}
	slices.SortFunc(prefixes, func(a, b netip.Prefix) int { return strings.Compare(a.String(), b.String()) })
	for _, r := range prefixes {
		slices.Sort(routes[r])
		out = append(out, Statement{What: "route of nodes", Value: r.String(), Reason: "reported by the agents of " + strings.Join(slices.Compact(routes[r]), ", ")})
	}
	return out
}

// planLedger is the ledger as it will be: with an entry for the peer, and the
// ranges by which this cluster knows it.
func (c *ClusterPlan) planLedger(s, peer *side) error {
	cn, internal := s.ledger, "as before"
	if cn == nil || !cn.DeletionTimestamp.IsZero() {
		cn, internal = newLedger(s.internal), s.internalReason
	}
	cn = cn.DeepCopy()
	entry := allocation(cn, peer.ID)
	why := "as before"
	if entry == nil {
		a, err := newAllocation(cn, peer.Cluster)
		if err != nil {
			return s.fail("claim an entry of the ledger", err)
		}
		cn.Spec.Peers = append(cn.Spec.Peers, a)
		entry, why = &cn.Spec.Peers[len(cn.Spec.Peers)-1], "the lowest that is free"
	}
	got, err := s.ranges(cn, entry, peer)
	if err != nil {
		return err
	}
	setRanges(entry, got)
	entry.Established = true
	c.ledger = cn
	assumed := len(s.unreported()) > 0
	own := cn.Spec.InternalCIDR.Prefix
	c.Ranges = append(c.Ranges, RangePlan{What: "overlay addresses of nodes and gateways", Real: own, Mapped: own, Reason: internal})
	for _, r := range got.Pods {
		c.Ranges = append(c.Ranges, RangePlan{What: "pods of " + peer.Name, Real: r.Real, Mapped: r.Mapped, Reason: r.Reason, Assumed: assumed})
	}
	c.Ranges = append(c.Ranges, RangePlan{
		What: "nodes and single addresses of " + peer.Name, Real: peer.internalCIDR(), Mapped: got.External, Reason: got.ExternalReason, Assumed: assumed,
	})
	nameReason := "after the name of the peer"
	if why == "as before" {
		nameReason = why
	}
	c.Choices = append(c.Choices,
		Statement{What: "name of the peering", Value: entry.Name, Reason: nameReason},
		Statement{What: "index of the peering", Value: strconv.Itoa(int(entry.Index)), Reason: why + "; interface names, VNIs and gateways' addresses derive from it"},
	)
	return nil
}

// internalCIDR is the one that the cluster has, or will have.
func (s *side) internalCIDR() netip.Prefix {
	if s.ledger != nil && s.ledger.DeletionTimestamp.IsZero() {
		return s.ledger.Spec.InternalCIDR.Prefix
	}
	return s.internal
}

// planGateway is the side's gateway, and where the peer's one calls it.
func (c *ClusterPlan) planGateway(s, peer *side, d decided, o Options) {
	c.decided = d
	c.gateway = manifests.Gateway{
		Peering: allocation(s.ledger, peer.ID).Name, Image: s.image, Role: d.role.is, Overlay: s.plannedOverlayKey(), WireGuard: d.wireguard.is,
		Port: gatewayPort, ServiceType: d.serviceType.is,
	}
	number, _ := ipam.GatewayNumber(int(allocation(s.ledger, peer.ID).Index), 0)
	address, _ := ipam.GatewayAddr(s.internalCIDR(), number)
	c.Choices = append(c.Choices,
		Statement{What: "role of the gateway", Value: string(d.role.is), Reason: d.role.why},
		Statement{What: "overlay", Value: string(d.overlay.is), Reason: d.overlay.why, Assumed: d.overlay.assumed},
		Statement{What: "WireGuard by", Value: string(d.wireguard.is), Reason: d.wireguard.why, Assumed: d.wireguard.assumed},
		Statement{What: "image of the agents", Value: s.image, Reason: s.imageReason},
		Statement{What: "overlay address of the gateway", Value: address.String(), Reason: "by the index, from the end of the overlay's range"},
		Statement{What: "address and node of the gateway's pod", Value: "<given by the cluster>", Reason: "the pod is not there before the run", DuringRun: true},
		Statement{What: "MTU", Value: "<agreed by the gateways>", Reason: "they measure what both clusters can carry", DuringRun: true},
	)
	secret := v1alpha1.Namespace + "/" + c.gateway.Name()
	key := Statement{What: "WireGuard key of the gateway", Value: "Secret " + secret, Reason: "made during the run, and never shown", DuringRun: true}
	if s.publicKey != "" {
		key.Reason, key.DuringRun = "as before", false
	}
	c.Keys = append(c.Keys, key)
	if d.role.is != v1alpha1.Server {
		if s.service != nil {
			c.stale = s.service
		}
		return
	}
	c.Choices = append(c.Choices, Statement{What: "exposed by a Service of type", Value: string(d.serviceType.is), Reason: d.serviceType.why, Assumed: d.serviceType.assumed})
	c.service = c.gateway.Service()
	c.service.Spec.Ports[0].NodePort = o.of(s.ID).NodePort
	if len(s.endpoints) > 0 {
		c.service.Annotations = map[string]string{annotationEndpoints: strings.Join(s.endpoints, ",")}
	}
	c.Endpoints = s.plannedEndpoints(c.service)
}

// annotationEndpoints of a gateway's Service keeps what the user gave by
// --endpoint.
const annotationEndpoints = "liqonet.io/endpoints"

// plannedEndpoints are where the gateway will be called. Where the Service has no
// address or port yet, that is named.
func (s *side) plannedEndpoints(svc *corev1.Service) (out []Statement) {
	say := func(endpoints []string, reason string, duringRun bool) []Statement {
		for _, e := range endpoints {
			out = append(out, Statement{What: "endpoint", Value: e, Reason: reason, DuringRun: duringRun})
		}
		return out
	}
	if len(s.endpoints) > 0 {
		return say(s.endpoints, "given by --endpoint", false)
	}
	want := svc.DeepCopy()
	reason := map[corev1.ServiceType]string{
		corev1.ServiceTypeNodePort: "address of a node that is ready", corev1.ServiceTypeLoadBalancer: "address of the load balancer",
		corev1.ServiceTypeClusterIP: "cluster IP of the Service",
	}[svc.Spec.Type]
	if s.service != nil && s.service.Spec.Type == svc.Spec.Type {
		want.Spec.ClusterIP, want.Status = s.service.Spec.ClusterIP, s.service.Status
		if port := &want.Spec.Ports[0]; port.NodePort == 0 {
			port.NodePort = s.service.Spec.Ports[0].NodePort
		}
	}
	if known := serviceEndpoints(want, s.facts.Nodes); len(known) > 0 {
		return say(known, reason, false)
	}
	name := fmt.Sprintf("of Service %s/%s in %s>", svc.Namespace, svc.Name, s.Name)
	port := strconv.Itoa(int(svc.Spec.Ports[0].Port))
	switch svc.Spec.Type {
	case corev1.ServiceTypeLoadBalancer:
		return say([]string{"<address " + name + ":" + port}, reason, true)
	case corev1.ServiceTypeNodePort:
		// Any port: it is replaced by what it is called.
		want.Spec.Ports[0].NodePort = 1
		var hosts []string
		for _, e := range serviceEndpoints(want, s.facts.Nodes) {
			host, _, _ := net.SplitHostPort(e)
			if strings.Contains(host, ":") {
				host = "[" + host + "]"
			}
			hosts = append(hosts, host+":<node port "+name)
		}
		return say(hosts, reason, true)
	default:
		return say([]string{"<cluster IP " + name + ":" + port}, reason, true)
	}
}

// planPeering is the side's Peering, with names in the place of what comes about
// during the run: the peer's key, and its endpoints.
func planPeering(s, peer *side, d decided, peerPlan *ClusterPlan) (*v1alpha1.Peering, error) {
	var endpoints []string
	if d.role.is == v1alpha1.Client {
		for _, e := range peerPlan.Endpoints {
			endpoints = append(endpoints, e.Value)
		}
	}
	named := peer.with(peer.ledger)
	named.publicKey = fmt.Sprintf("<public key in Secret %s/%s of %s>", v1alpha1.Namespace, peerPlan.gateway.Name(), peer.Name)
	spec, err := peeringSpec(s, named, d, endpoints)
	if err != nil {
		return nil, err
	}
	g := manifests.Gateway{Peering: allocation(s.ledger, peer.ID).Name}
	return &v1alpha1.Peering{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "Peering"},
		ObjectMeta: metav1.ObjectMeta{Name: g.Peering, Labels: g.Labels()},
		Spec:       spec,
	}, nil
}

// planTranslation is by which ranges both know each other.
func planTranslation(s, peer *side) (*v1alpha1.Translation, error) {
	known := func(of, by *side) ([]v1alpha1.CIDRMapping, error) {
		entry := allocation(by.ledger, of.ID)
		nodes, err := ipam.ExternalMapping(of.internalCIDR(), entry.ExternalCIDR.Prefix)
		if err != nil {
			return nil, err
		}
		return append(slices.Clone(entry.Pods), v1alpha1.CIDRMapping{
			Real: v1alpha1.CIDR{Prefix: nodes.Real}, Mapped: v1alpha1.CIDR{Prefix: nodes.Mapped},
		}), nil
	}
	local, err := known(s, peer)
	if err != nil {
		return nil, err
	}
	remote, err := known(peer, s)
	return &v1alpha1.Translation{Local: local, Remote: remote}, err
}

// planObjects lists every object, in the order in which they are made.
func (c *ClusterPlan) planObjects(s *side) error {
	add := func(reason string, objs ...client.Object) error {
		for _, obj := range objs {
			u, err := wanted(obj)
			if err != nil {
				return err
			}
			c.Objects = append(c.Objects, ObjectPlan{
				APIVersion: u.GetAPIVersion(), Kind: u.GetKind(), Namespace: u.GetNamespace(), Name: u.GetName(),
				Reason: reason, Manifest: u.Object,
			})
		}
		return nil
	}
	crds, err := manifests.CRDs()
	if err != nil {
		return err
	}
	for _, crd := range crds {
		if err := add("the API in which is written what was decided", crd); err != nil {
			return err
		}
	}
	account, daemonSet := manifests.NodeAgent(s.image, s.plannedOverlayKey())
	overlay := manifests.OverlaySecret(nil)
	overlay.Data = nil
	for _, stage := range []struct {
		reason string
		objs   []client.Object
	}{
		{"for the agents", []client.Object{manifests.Namespace()}},
		{"the key that keeps others out of the overlay; made once, and never shown", []client.Object{overlay}},
		{"account and permissions of the node agents", account},
		{"a node agent on every Linux node", []client.Object{daemonSet}},
	} {
		if err := add(stage.reason, stage.objs...); err != nil {
			return err
		}
	}
	ledger := c.ledger.DeepCopy()
	ledger.TypeMeta = newLedger(netip.Prefix{}).TypeMeta
	ledger.ObjectMeta = metav1.ObjectMeta{Name: ledger.Name, Labels: ledger.Labels, Finalizers: ledger.Finalizers}
	if err := add(fmt.Sprintf("the ledger: an entry for %s, and the ranges given out to it", c.Peer), ledger); err != nil {
		return err
	}
	c.Objects = append(c.Objects, s.plannedNodes()...)
	secret := &corev1.Secret{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.Namespace, Name: c.gateway.Name(), Labels: c.gateway.Labels()},
		Immutable:  new(true),
	}
	if err := add("the gateway's WireGuard key; made once, and never shown", secret); err != nil {
		return err
	}
	account, deployment := c.gateway.Objects()
	if err := add("account and permissions of the gateway", account...); err != nil {
		return err
	}
	if c.service != nil {
		if err := add("by which the gateway of "+c.Peer+" calls this one", c.service); err != nil {
			return err
		}
	}
	if c.stale != nil {
		c.Objects = append(c.Objects, ObjectPlan{
			Action: Delete, APIVersion: "v1", Kind: "Service", Namespace: c.stale.Namespace, Name: c.stale.Name,
			Reason: "the gateway is not called any more, it calls",
		})
	}
	if err := add("the gateway to "+c.Peer, deployment); err != nil {
		return err
	}
	peering := c.peering.DeepCopy()
	peering.Status.Translation = c.translation
	if err := add("what the gateway and the nodes of this cluster do", peering); err != nil {
		return err
	}
	status, err := statusOf(peering)
	if err != nil {
		return err
	}
	c.Objects[len(c.Objects)-1].Manifest["status"] = status.Object["status"]
	return nil
}

// plannedOverlayKey tells the key of the overlay from others, or where it will be.
func (s *side) plannedOverlayKey() manifests.OverlayKey {
	if s.overlayKey != "" {
		return s.overlayKey
	}
	return manifests.OverlayKey(fmt.Sprintf("<of the key in Secret %s/%s>", v1alpha1.Namespace, v1alpha1.OverlaySecret))
}

// plannedNodes are the objects that node agents make: one with the overlay
// address of each.
func (s *side) plannedNodes() []ObjectPlan {
	taken := map[string]bool{}
	for _, n := range s.nodes {
		taken[n.Name] = true
	}
	nodes := slices.Clone(s.facts.Nodes)
	slices.SortFunc(nodes, func(a, b discovery.Node) int { return strings.Compare(a.Name, b.Name) })
	var out []ObjectPlan
	for _, n := range nodes {
		if !n.Ready || n.OS == "windows" {
			continue
		}
		o := ObjectPlan{
			APIVersion: v1alpha1.GroupVersion.String(), Kind: "NodeNetwork", MadeBy: "the agent of node " + n.Name,
			Reason: "the node's overlay address, by its name: the first that is free",
		}
		if r := reportOf(s.nodes, n.Name); r != nil {
			o.Name, o.Action = r.Name, Keep
		} else {
			for i := range ipam.MaxNode {
				addr, err := ipam.NodeAddr(s.internalCIDR(), ipam.NodeCandidate(n.Name, i))
				if err == nil && !taken[addr.String()] {
					o.Name, o.Action = addr.String(), Create
					break
				}
			}
			taken[o.Name] = true
		}
		out = append(out, o)
	}
	return out
}
