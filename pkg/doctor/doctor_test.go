package doctor

import (
	"fmt"
	"net/netip"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/check"
	"github.com/liqonet/liqonet/pkg/plan"
	"github.com/liqonet/liqonet/pkg/probe"
	"github.com/liqonet/liqonet/test/kit"
)

var now = time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)

const (
	keyA = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="
	keyB = "BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBA="
)

func addr(s string) v1alpha1.IP { return v1alpha1.IP{Addr: netip.MustParseAddr(s)} }

func pod(name, node, component, account string) corev1.Pod {
	p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app.kubernetes.io/component": component}, CreationTimestamp: metav1.NewTime(now.Add(-time.Hour))}}
	p.Spec.NodeName, p.Spec.ServiceAccountName, p.Status.Phase = node, account, corev1.PodRunning
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Image: "agent:v1", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(now.Add(-time.Hour))}},
	}}
	if component == "gateway" {
		p.Labels[v1alpha1.LabelPeering], p.Labels[v1alpha1.LabelPlane] = strings.Split(account, "-")[1], "0"
	}
	return p
}

func kernel(own, other string) *probe.Kernel {
	return &probe.Kernel{
		Release: "6.18.0", WireGuard: true, VXLAN: true, Geneve: true, Conntrack: probe.ConntrackTable{Count: 10, Max: 1000},
		Links: []probe.Link{
			{Name: "eth0", Kind: "veth", MTU: 1500, MAC: "02:00:00:00:00:0" + own, Uplink: true, Forwarding: true, RPFilter: 1, Addresses: []netip.Prefix{netip.MustParsePrefix("172.18.1.1" + own + "/24")}},
			{Name: "loq0-0", Kind: "vxlan", MTU: 1440, IsOwn: true, Forwarding: true, RPFilter: 2},
		},
		Neighbors: map[string]string{"172.18.1.1" + other: "02:00:00:00:00:0" + other},
		Pings:     []probe.Ping{{To: netip.MustParseAddr("10.9.31.254"), Sizes: []int{100, 1440}, Answered: []int{100, 1440}}},
	}
}

// cluster returns one of two peered clusters without problems.
func cluster(name, peer, key, remoteKey string, role v1alpha1.Role) *Cluster {
	second := time.Second
	c := &Cluster{
		Name: name, ID: "id-" + name, Kubectl: "kubectl --context " + name, Now: now, SkipReasons: map[Part]string{},
		Own: Objects{
			Installed: true, CRDs: map[string]string{"peerings.liqonet.io": "", "nodenetworks.liqonet.io": ""},
			DaemonSet: &appsv1.DaemonSet{}, Identity: key, Secrets: map[string]bool{"gateway-" + peer + "-0-1": true, "gateway-" + peer + "-0-psk-1": true, "liqonet-overlay-1": true},
			Accounts: corev1.ServiceAccountList{Items: []corev1.ServiceAccount{
				{ObjectMeta: metav1.ObjectMeta{Name: "liqonet-node", CreationTimestamp: metav1.NewTime(now.Add(-2 * time.Hour))}},
				{ObjectMeta: metav1.ObjectMeta{Name: "gateway-" + peer + "-0", CreationTimestamp: metav1.NewTime(now.Add(-2 * time.Hour))}},
			}},
			Pods: []corev1.Pod{pod("gw", name+"-1", "gateway", "gateway-"+peer+"-0")},
		},
		Machines:   Machines{NodeSilence: map[string]time.Duration{name + "-1": second, name + "-2": second}, Kernels: map[string]*probe.Kernel{}},
		Reports:    map[string]*v1alpha1.NodeNetwork{},
		Heartbeats: map[string]Heartbeat{"gateway-" + peer + "-0": {Age: &second, Version: "v1"}},
	}
	c.Own.DaemonSet.Spec.Template.Spec.Volumes = []corev1.Volume{{Name: "overlay", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "liqonet-overlay-1"}}}}
	p := v1alpha1.Peering{ObjectMeta: metav1.ObjectMeta{Name: peer, Generation: 3}}
	p.Spec.Remote.ClusterID, p.Spec.Remote.Name, p.Spec.Overlay = "id-"+peer, peer, "VXLAN"
	p.Spec.Planes = []v1alpha1.Plane{{
		Role: role, KeyGeneration: 1, PresharedKey: v1alpha1.PresharedKey{Generation: 1, Fingerprint: "f"}, RemotePublicKey: remoteKey, RemoteAddress: addr("10.9.31.254"),
	}}
	if role == v1alpha1.Client {
		p.Spec.Planes[0].Endpoints = []string{"gw.example.com:31000", "203.0.113.1:31000"}
	}
	handshake := metav1.NewTime(now)
	p.Status.Planes = []v1alpha1.PlaneStatus{{Connected: true, PublicKey: key, NodeName: name + "-1", PodIP: addr("10.244.0.9"), MTU: 1440, LastHandshake: &handshake}}
	c.Peerings = []v1alpha1.Peering{p}
	for i, n := range []string{name + "-1", name + "-2"} {
		node := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n, Labels: map[string]string{corev1.LabelOSStable: "linux"}}}
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "172.18.1.1" + string("12"[i])}}
		c.Machines.Nodes = append(c.Machines.Nodes, node)
		c.Own.Pods = append(c.Own.Pods, pod("agent-"+n, n, "node", "liqonet-node"))
		r := &v1alpha1.NodeNetwork{ObjectMeta: metav1.ObjectMeta{Name: n}}
		r.Status.Address = addr("10.80.0." + string("12"[i]))
		c.Heartbeats[r.LeaseName()] = Heartbeat{Age: &second, Version: "v1"}
		r.Status.Gateways = []v1alpha1.NodeGateway{{PeeringName: peer, Ready: true, ObservedGeneration: 3}}
		c.Reports[n] = r
		c.Machines.Kernels[n] = kernel(string("12"[i]), string("21"[i]))
	}
	return c
}

// ledgerOf returns a ledger with active entries.
func ledgerOf(peers ...v1alpha1.PeerAllocation) *v1alpha1.ClusterNetwork {
	cn := &v1alpha1.ClusterNetwork{}
	for _, e := range peers {
		e.Phase = v1alpha1.PeerActive
		cn.Spec.Peers = append(cn.Spec.Peers, e)
	}
	return cn
}

// healthy returns two clusters. The gateway of alpha is the client.
func healthy() *Facts {
	return &Facts{Version: "v1", Clusters: []*Cluster{
		cluster("alpha", "beta", keyA, keyB, v1alpha1.Client), cluster("beta", "alpha", keyB, keyA, v1alpha1.Server),
	}}
}

func TestHealthy(t *testing.T) {
	r := Examine(healthy())
	for _, c := range r.Checks {
		kit.ErrorIf(t, c.Result != check.Passed, "%s: %s %v", c.Name, c.Result, c.Findings)
	}
	kit.ErrorIf(t, r.Cause != nil || r.Result != check.Passed, "%s, %v", r.Result, r.Cause)
}

// Losses of the past, which agents still report, are no fault once pings pass.
func TestLossesOfThePast(t *testing.T) {
	f := healthy()
	a := f.Clusters[0]
	setLoss(a, "gateway-beta-0", 100)
	a.Reports["alpha-2"].Status.Gateways[0].LossPercent = 90
	kit.ErrorIf(t, Examine(f).Cause == nil, "a loss is not found")
	for _, node := range []string{"alpha-1", "alpha-2"} {
		a.Machines.Kernels[node].Others.Losses = []probe.Loss{{To: a.Peerings[0].Spec.Planes[0].RemoteAddress.Addr, Sent: 500, Lost: 20}}
	}
	cause := Examine(f).Cause
	kit.ErrorIf(t, cause != nil, "the cause is %+v", cause)
}

// Before clusters are peered, doctor names the policies of the server's cluster that may block UDP.
func TestPoliciesBeforePeering(t *testing.T) {
	f := healthy()
	for _, c := range f.Clusters {
		c.Peerings, c.Reports = nil, nil
	}
	f.UDPTests = []UDPTest{{From: "alpha", To: "beta", Address: "172.18.2.11:30000"}}
	f.Clusters[1].Own.ClusterPolicies = []unstructured.Unstructured{{Object: map[string]any{
		"kind": "GlobalNetworkPolicy", "metadata": map[string]any{"name": "default-deny"}, "spec": map[string]any{"types": []any{"Ingress"}},
	}}}
	cause := Examine(f).Cause
	kit.ErrorIf(t, cause == nil || !strings.Contains(cause.Evidence, "policies of beta may block it: GlobalNetworkPolicy default-deny") ||
		!strings.Contains(cause.Hint, "exempt the namespace liqonet-system"), "the cause is %+v", cause)
}

// A few packets are damaged on every network.
func TestFewWrongChecksums(t *testing.T) {
	f := healthy()
	f.Clusters[0].Machines.Kernels["alpha-2"].Others.WrongChecksums = 2
	r := Examine(f)
	kit.ErrorIf(t, r.Cause != nil || r.Result != check.Passed, "%s, %v", r.Result, r.Cause)
}

// Cluster-wide policies are named only if a gateway or a node does not reach the peer.
func TestPoliciesOfUnreachedPeers(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*Cluster)
		want   bool
	}{
		"all reach the peer":                     {func(*Cluster) {}, false},
		"a gateway does not":                     {func(c *Cluster) { c.Peerings[0].Status.Planes[0].Connected = false }, true},
		"a gateway is silent, and reported that": {func(c *Cluster) { dead(c, v1alpha1.GatewayName("beta", 0)) }, true},
		"a node does not":                        {func(c *Cluster) { c.Reports["alpha-2"].Status.Gateways[0].Ready = false }, true},
	} {
		f := healthy()
		f.Clusters[0].Own.ClusterPolicies = []unstructured.Unstructured{{Object: map[string]any{
			"kind": "GlobalNetworkPolicy", "metadata": map[string]any{"name": "default-deny"}, "spec": map[string]any{"types": []any{"Ingress"}},
		}}}
		test.change(f.Clusters[0])
		checks := Examine(f).Checks
		i := slices.IndexFunc(checks, func(c check.Check) bool { return c.Name == "liqonet-policy-02" })
		kit.Check(t, name, len(checks[i].Findings) > 0, test.want)
	}
}

// down makes the tunnel lose all packets.
func down(c *Cluster, message string) {
	c.Peerings[0].Status.Planes[0].Connected, c.Peerings[0].Status.Planes[0].Message = false, message
	for _, r := range c.Reports {
		r.Status.Gateways[0].Ready = false
	}
	for _, k := range c.Machines.Kernels {
		k.Pings[0].Answered = nil
	}
}

func minutes(n int) *time.Duration { d := time.Duration(n) * time.Minute; return &d }

// dead makes an agent's last heartbeat five minutes old.
func dead(c *Cluster, lease string) {
	b := c.Heartbeats[lease]
	b.Age = minutes(5)
	c.Heartbeats[lease] = b
}

// fault is a change to healthy facts, and the expected cause. If says is empty, a finding is expected but no cause.
type fault struct {
	name, check, says string
	make              func(f *Facts, a, b *Cluster)
}

func faults() []fault {
	return []fault{
		{"api", "liqonet-api-01", "the API server does not answer", func(f *Facts, a, b *Cluster) {
			f.Clusters[1] = &Cluster{Name: "beta", API: APIServer{Unreachable: "connection refused", Hint: "kubectl cluster-info"}}
		}},
		{"credentials", "liqonet-api-02", "does not accept the credentials", func(f *Facts, a, b *Cluster) {
			f.Clusters[1] = &Cluster{Name: "beta", API: APIServer{Refused: "Unauthorized"}}
		}},
		{"definition", "liqonet-definition-01", "nodenetworks.liqonet.io is gone", func(f *Facts, a, b *Cluster) {
			a.Own.CRDs["nodenetworks.liqonet.io"] = "is gone"
			a.Reports = nil
			dead(a, "node-10.80.0.1")
			down(a, "")
		}},
		{"user", "liqonet-permission-01", "", func(f *Facts, a, b *Cluster) { a.API.MissingPermissions = []string{"create pods"} }},
		{"role", "liqonet-permission-02", "ClusterRole liqonet-node is gone", func(f *Facts, a, b *Cluster) {
			a.Own.Drift = []plan.ObjectPlan{{Action: plan.Create, Kind: "ClusterRole", Name: "liqonet-node"}, {Action: plan.Change, Kind: "DaemonSet", Name: "liqonet-node"}}
			dead(a, "node-10.80.0.1")
		}},
		{"token", "liqonet-token-01", "ServiceAccount liqonet-node was recreated", func(f *Facts, a, b *Cluster) {
			a.Own.Accounts.Items[0].CreationTimestamp = metav1.NewTime(now.Add(-time.Minute))
			dead(a, "node-10.80.0.1")
		}},
		{"secret", "liqonet-secret-01", "gateway-beta-0-1 is gone", func(f *Facts, a, b *Cluster) {
			delete(a.Own.Secrets, "gateway-beta-0-1")
			dead(a, "gateway-beta-0")
			down(b, "")
		}},
		{"identity is gone", "liqonet-identity-01", "the identity key of the cluster is gone", func(f *Facts, a, b *Cluster) {
			a.Ledger, a.Own.Identity = ledgerOf(v1alpha1.PeerAllocation{ClusterID: b.ID, Name: "beta", IdentityKey: keyB}), ""
		}},
		{"another identity", "liqonet-identity-01", "another identity key than the one that beta knows", func(f *Facts, a, b *Cluster) {
			b.Ledger = ledgerOf(v1alpha1.PeerAllocation{ClusterID: a.ID, Name: "alpha", IdentityKey: keyB})
		}},
		{"two peers with one identity", "liqonet-identity-01", "peers have one identity key: beta, gamma", func(f *Facts, a, b *Cluster) {
			a.SkipReasons[Drifts] = "there is no Peering gamma"
			a.Ledger = ledgerOf(v1alpha1.PeerAllocation{ClusterID: b.ID, Name: "beta", IdentityKey: keyB}, v1alpha1.PeerAllocation{ClusterID: "id-gamma", Name: "gamma", IdentityKey: keyB})
		}},
		{"server's clock", "liqonet-clock-01", "1h0m0s ahead of", func(f *Facts, a, b *Cluster) { a.API.ClockAhead = time.Hour }},
		{"agents' clock", "liqonet-clock-02", "the agent of node alpha-2 is 1h0m0s behind", func(f *Facts, a, b *Cluster) {
			a.Heartbeats["node-10.80.0.2"] = Heartbeat{Age: a.Heartbeats["node-10.80.0.2"].Age, Version: "v1", ClockAhead: -time.Hour}
		}},
		{"version", "liqonet-version-01", "agents have version v0.9", func(f *Facts, a, b *Cluster) {
			a.Heartbeats["node-10.80.0.2"] = Heartbeat{Age: a.Heartbeats["node-10.80.0.2"].Age, Version: "v0.9"}
		}},
		{"no agent", "liqonet-agent-01", "node alpha-2 has no agent", func(f *Facts, a, b *Cluster) {
			a.Own.Pods = a.Own.Pods[:2]
			dead(a, "node-10.80.0.2")
		}},
		{"agent", "liqonet-agent-02", "the agent of node alpha-2 does not respond", func(f *Facts, a, b *Cluster) { a.Machines.Kernels["alpha-2"].Unhealthy = "no answer" }},
		{"gateway", "liqonet-agent-03", "the gateway to beta does not respond, on node alpha-1", func(f *Facts, a, b *Cluster) {
			dead(a, "gateway-beta-0")
			down(b, "the peer's gateway has not connected yet")
		}},
		{"all gateways", "liqonet-agent-04", "all 2 gateways to beta are dead", func(f *Facts, a, b *Cluster) {
			a.Peerings[0].Spec.Planes = append(a.Peerings[0].Spec.Planes, v1alpha1.Plane{Index: 1, KeyGeneration: 1, RemotePublicKey: keyB})
			a.Own.Secrets["gateway-beta-1-1"] = true
			dead(a, "gateway-beta-0")
			down(b, "")
		}},
		{"message", "liqonet-agent-05", "reports a problem: no room", func(f *Facts, a, b *Cluster) { says(a.Reports["alpha-2"], "no room") }},
		{"image", "liqonet-pod-01", "node alpha-2 cannot pull the agents' image agent:v1", func(f *Facts, a, b *Cluster) {
			a.Own.Pods[2].Status.ContainerStatuses[0].State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff"}}
			dead(a, "node-10.80.0.2")
		}},
		{"crash", "liqonet-pod-02", "the gateway to beta crashes repeatedly on node alpha-1: bad flag", func(f *Facts, a, b *Cluster) {
			a.Own.Pods[0].Status.ContainerStatuses[0] = corev1.ContainerStatus{
				RestartCount: 4, State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}},
				LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Error", Message: "bad flag\n"}},
			}
			dead(a, "gateway-beta-0")
			down(b, "")
		}},
		{"pending", "liqonet-pod-03", "no node accepts the gateway to beta: 0/2 nodes", func(f *Facts, a, b *Cluster) {
			a.Own.Pods[0].Spec.NodeName, a.Own.Pods[0].Status.Phase = "", corev1.PodPending
			a.Own.Pods[0].Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "0/2 nodes"}}
			dead(a, "gateway-beta-0")
			down(b, "")
		}},
		{"memory", "liqonet-pod-04", "too little memory", func(f *Facts, a, b *Cluster) {
			a.Own.Pods[0].Status.ContainerStatuses[0].RestartCount = 3
			a.Own.Pods[0].Status.ContainerStatuses[0].LastTerminationState = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "OOMKilled", FinishedAt: metav1.NewTime(now)}}
		}},
		{"starved", "liqonet-starved-01", "the agent of node alpha-2 gets too little CPU time", func(f *Facts, a, b *Cluster) {
			a.Heartbeats["node-10.80.0.2"] = Heartbeat{Age: minutes(3), Version: "v1", Starved: 90}
		}},
		{"policy", "liqonet-policy-01", "NetworkPolicy deny blocks UDP to the gateways", func(f *Facts, a, b *Cluster) {
			a.Own.Policies.Items = []networkingv1.NetworkPolicy{{ObjectMeta: metav1.ObjectMeta{Name: "deny"}, Spec: networkingv1.NetworkPolicySpec{PolicyTypes: []networkingv1.PolicyType{"Ingress"}}}}
			down(a, "")
		}},
		{"node", "liqonet-node-01", "node alpha-1 is not ready", func(f *Facts, a, b *Cluster) {
			a.Machines.Nodes[0].Status.Conditions[0].Status = corev1.ConditionUnknown
			dead(a, "gateway-beta-0")
			dead(a, "node-10.80.0.1")
			down(b, "")
		}},
		{"disk", "liqonet-disk-01", "the disk of node alpha-2 is full", func(f *Facts, a, b *Cluster) {
			a.Machines.Nodes[1].Status.Conditions = append(a.Machines.Nodes[1].Status.Conditions, corev1.NodeCondition{Type: corev1.NodeDiskPressure, Status: corev1.ConditionTrue})
			a.Own.Pods = a.Own.Pods[:2]
			dead(a, "node-10.80.0.2")
		}},
		{"kernel", "liqonet-kernel-01", "does not support the required overlay", func(f *Facts, a, b *Cluster) { a.Machines.Kernels["alpha-2"].VXLAN = false }},
		{"firewall", "liqonet-firewall-01", "a firewall on node alpha-2 drops", func(f *Facts, a, b *Cluster) {
			a.Machines.Kernels["alpha-2"].Blocked = []string{"inet fw forward"}
			says(a.Reports["alpha-2"], "inet fw forward")
		}},
		{"connections", "liqonet-conntrack-01", "the connection tracking table of node alpha-1 is full", func(f *Facts, a, b *Cluster) {
			a.Machines.Kernels["alpha-1"].Conntrack.Count = 990
			down(a, "")
			down(b, "")
		}},
		{"link", "liqonet-link-01", "an interface loq0-0 that is not ours", func(f *Facts, a, b *Cluster) { a.Machines.Kernels["alpha-2"].Links[1].IsOwn = false }},
		{"strict", "liqonet-forward-01", "node alpha-2 drops packets of peers from loq0-0", func(f *Facts, a, b *Cluster) { a.Machines.Kernels["alpha-2"].Links[1].RPFilter = 1 }},
		{"port", "liqonet-port-01", "UDP port 6094 on node alpha-2 is taken", func(f *Facts, a, b *Cluster) { a.Machines.Kernels["alpha-2"].PortTaken = "vxlan0" }},
		{"rule", "liqonet-rule-01", "others use our routing table", func(f *Facts, a, b *Cluster) {
			a.Machines.Kernels["alpha-2"].ForeignRules = []string{"rule"}
			says(a.Reports["alpha-2"], "foreign rule")
		}},
		{"cluster-wide policy", "liqonet-policy-02", "cluster-wide policies may block packets of gateways: GlobalNetworkPolicy default-deny", func(f *Facts, a, b *Cluster) {
			a.Peerings[0].Status.Planes[0].Connected = false
			a.Own.ClusterPolicies = []unstructured.Unstructured{{Object: map[string]any{
				"kind": "GlobalNetworkPolicy", "metadata": map[string]any{"name": "default-deny"}, "spec": map[string]any{"types": []any{"Ingress", "Egress"}},
			}}}
		}},
		{"firewall that drops some packets", "liqonet-firewall-02", "rules on node alpha-2 drop some packets of peers or gateways: nftables chain ip filter FORWARD: to 10.9.0.0/16", func(f *Facts, a, b *Cluster) {
			a.Machines.Kernels["alpha-2"].Others.PartialDrops = []string{"nftables chain ip filter FORWARD: to 10.9.0.0/16"}
		}},
		{"rule before ours", "liqonet-rule-02", "rules on node alpha-2 come before ours, and take packets to peers elsewhere: 10: from all iif eni1 lookup 101", func(f *Facts, a, b *Cluster) {
			a.Machines.Kernels["alpha-2"].Others.EarlierRules = []string{"10: from all iif eni1 lookup 101"}
		}},
		{"repairs", "liqonet-route-01", "another program kept changing our links, rules, routes or table on node alpha-2", func(f *Facts, a, b *Cluster) {
			a.Machines.Kernels["alpha-2"].Others.Recent = probe.Recent{Repairs: 40, Repaired: "added rule 90: lookup 27761"}
		}},
		{"unencrypted", "liqonet-route-02", "node alpha-2 drops packets to peers, because they would leave it unencrypted", func(f *Facts, a, b *Cluster) {
			a.Machines.Kernels["alpha-2"].Others.Unencrypted = 3
		}},
		{"unencrypted before", "liqonet-route-02", "node alpha-2 has dropped packets to peers", func(f *Facts, a, b *Cluster) {
			a.Machines.Kernels["alpha-2"].Others.Recent.Unencrypted = 3
		}},
		{"checksums", "liqonet-checksum-01", "packets arrive on node alpha-2 with wrong checksums", func(f *Facts, a, b *Cluster) {
			a.Machines.Kernels["alpha-2"].Others.WrongChecksums = 30
		}},
		{"routes", "liqonet-route-01", "another program keeps deleting our routes", func(f *Facts, a, b *Cluster) { a.Machines.Kernels["alpha-2"].RouteChanges = 9 }},
		{"proxy ARP", "liqonet-arp-01", "node alpha-2 answers ARP for other addresses", func(f *Facts, a, b *Cluster) { a.Machines.Kernels["alpha-2"].Links[0].ProxyARP = true }},
		{"duplicate, as its node knows", "liqonet-duplicate-01", "another machine has the address 172.18.1.12 of node alpha-2", func(f *Facts, a, b *Cluster) {
			a.Machines.Kernels["alpha-2"].Duplicates = map[string]string{"172.18.1.12": "02:00:00:00:00:99"}
		}},
		{"duplicate, as others know", "liqonet-duplicate-01", "another machine has the address 172.18.1.12 of node alpha-2", func(f *Facts, a, b *Cluster) {
			a.Machines.Kernels["alpha-1"].Neighbors["172.18.1.12"] = "02:00:00:00:00:99"
		}},
		{"MTU", "liqonet-mtu-01", "the uplink of node alpha-2 has an MTU of 1300, others have 1500", func(f *Facts, a, b *Cluster) { a.Machines.Kernels["alpha-2"].Links[0].MTU = 1300 }},
		{"name", "liqonet-endpoint-01", "gw.example.com does not resolve", func(f *Facts, a, b *Cluster) {
			down(a, `endpoint "gw.example.com": lookup gw.example.com: no such host`)
			down(b, "")
		}},
		{"key", "liqonet-key-01", "it has a wrong key for beta's gateway", func(f *Facts, a, b *Cluster) {
			a.Peerings[0].Spec.Planes[0].RemotePublicKey = keyA
			down(a, "")
			down(b, "")
		}},
		{"pre-shared key", "liqonet-key-01", "different pre-shared keys", func(f *Facts, a, b *Cluster) { b.Peerings[0].Spec.Planes[0].PresharedKey.Fingerprint = "g" }},
		{"UDP", "liqonet-udp-01", "UDP does not reach beta's gateway at", func(f *Facts, a, b *Cluster) {
			down(a, "no handshake")
			down(b, "has not connected yet")
			a.Traffic = map[string]Traffic{"gateway-beta-0": {Sent: 1480}}
			b.Traffic = map[string]Traffic{"gateway-alpha-0": {}}
		}},
		{"one way", "liqonet-udp-02", "nothing from beta arrives", func(f *Facts, a, b *Cluster) {
			down(a, "no handshake")
			down(b, "not answered")
			a.Traffic = map[string]Traffic{"gateway-beta-0": {Sent: 1480}}
			b.Traffic = map[string]Traffic{"gateway-alpha-0": {Received: 1480, Sent: 920}}
		}},
		{"not peered", "liqonet-udp-03", "UDP from its nodes does not reach beta", func(f *Facts, a, b *Cluster) {
			f.UDPTests = []UDPTest{{From: "alpha", To: "beta", Address: "172.18.2.11:30000"}}
		}},
		{"NAT", "liqonet-nat-01", "a NAT on the path to alpha drops the tunnel's mapping", func(f *Facts, a, b *Cluster) {
			b.Traffic = map[string]Traffic{"gateway-alpha-0": {Endpoints: []string{"192.0.2.1:1024", "192.0.2.1:1029"}}}
		}},
		{"copy", "liqonet-copy-01", "the objects of liqonet were made for another cluster", func(f *Facts, a, b *Cluster) {
			a.Ledger = &v1alpha1.ClusterNetwork{Spec: v1alpha1.ClusterNetworkSpec{
				ClusterID: "id-of-the-original", Peers: []v1alpha1.PeerAllocation{{Name: "beta"}},
			}}
			a.Own.Drift = []plan.ObjectPlan{{Action: plan.Create, Kind: "Role", Name: "liqonet-node"}} // not to be repaired
		}},
		{"two callers", "liqonet-callers-01", "two gateways call with the key of beta's gateway", func(f *Facts, a, b *Cluster) {
			a.Peerings[0].Status.Planes[0].OtherCaller = "192.0.2.7:51840"
			setLoss(a, "gateway-beta-0", 50)
		}},
		{"loss between gateways", "liqonet-loss-01", "6 % of packets to beta get lost", func(f *Facts, a, b *Cluster) {
			setLoss(a, "gateway-beta-0", 6)
		}},
		{"steady loss between gateways", "liqonet-loss-01", "9 % of packets to beta get lost", func(f *Facts, a, b *Cluster) {
			for node, lost := range map[string]int{"alpha-1": 45, "alpha-2": 41} {
				a.Machines.Kernels[node].Others.Losses = []probe.Loss{{To: a.Peerings[0].Spec.Planes[0].RemoteAddress.Addr, Sent: 500, Lost: lost}}
			}
		}},
		{"steady loss at a node", "liqonet-loss-01", "6 % of packets between node alpha-2 and beta get lost", func(f *Facts, a, b *Cluster) {
			for node, lost := range map[string]int{"alpha-1": 25, "alpha-2": 26} {
				a.Machines.Kernels[node].Others.Losses = []probe.Loss{{To: a.Peerings[0].Spec.Planes[0].RemoteAddress.Addr, Sent: 500, Lost: lost}}
			}
		}},
		{"loss at a node", "liqonet-loss-01", "7 % of packets between node alpha-2 and beta get lost", func(f *Facts, a, b *Cluster) {
			a.Reports["alpha-2"].Status.Gateways[0].LossPercent = 7
		}},
		{"tunnel", "liqonet-tunnel-01", "no packets pass to beta", func(f *Facts, a, b *Cluster) {
			down(a, "probes are not answered")
			a.Traffic = map[string]Traffic{"gateway-beta-0": {Sent: 1480, Received: 1480}}
			b.Traffic = map[string]Traffic{"gateway-alpha-0": {Received: 1480, Sent: 920}}
		}},
		{"overlay", "liqonet-overlay-01", "UDP 6094 does not pass between node alpha-2 and the gateway on alpha-1", func(f *Facts, a, b *Cluster) {
			a.Reports["alpha-2"].Status.Gateways[0].Ready = false
			a.Machines.Kernels["alpha-2"].Pings[0].Answered = nil
		}},
		{"pod network", "liqonet-overlay-01", "node alpha-2 does not reach pods on node alpha-1", func(f *Facts, a, b *Cluster) {
			a.Reports["alpha-2"].Status.Gateways[0].Ready = false
			a.Machines.Kernels["alpha-2"].Pings = append(a.Machines.Kernels["alpha-2"].Pings, probe.Ping{To: netip.MustParseAddr("10.244.0.9"), Sizes: []int{100}})
		}},
		{"full size", "liqonet-mtu-02", "large packets to beta get lost: 100 bytes pass, but 1440 do not", func(f *Facts, a, b *Cluster) {
			for _, k := range a.Machines.Kernels {
				k.Pings[0].Answered = []int{100}
			}
		}},
		{"range", "liqonet-range-01", "node alpha-2 has a route", func(f *Facts, a, b *Cluster) {
			route := v1alpha1.CIDR{Prefix: netip.MustParsePrefix("10.1.0.0/24")}
			a.Peerings[0].Spec.Remote.ExternalCIDR, a.Reports["alpha-2"].Status.Routes = route, []v1alpha1.CIDR{route}
		}},
		{"pods outside", "liqonet-range-02", "pod 10.99.0.1 of node alpha-2 is outside of 10.244.0.0/16", func(f *Facts, a, b *Cluster) {
			a.Peerings[0].Spec.Local.Pods = []v1alpha1.CIDRMapping{{Real: v1alpha1.CIDR{Prefix: netip.MustParsePrefix("10.244.0.0/16")}, Mapped: v1alpha1.CIDR{Prefix: netip.MustParsePrefix("10.244.0.0/16")}}}
			a.Peerings[0].Spec.Local.InternalCIDR = v1alpha1.CIDR{Prefix: netip.MustParsePrefix("10.80.0.0/19")}
			a.Reports["alpha-2"].Status.PodIPs = []v1alpha1.IP{addr("10.99.0.1")}
		}},
		{"full", "liqonet-range-03", "there is room for only a few more pods outside of the ranges of node alpha-1", func(f *Facts, a, b *Cluster) {
			a.Reports["alpha-1"].Status.PodIPs = make([]v1alpha1.IP, 1000)
		}},
		{"plan", "liqonet-plan-01", "a peering cannot be planned: ranges overlap", func(f *Facts, a, b *Cluster) { a.Plan = "ranges overlap" }},
		{"drift", "liqonet-drift-01", "Service gateway-beta is gone", func(f *Facts, a, b *Cluster) {
			a.Own.Drift = []plan.ObjectPlan{{Action: plan.Create, Kind: "Service", Name: "gateway-beta"}}
		}},
		{"weak policies", "liqonet-drift-01", "agents' tokens can write more than agents do: the admission policies liqonet-node are missing or", func(f *Facts, a, b *Cluster) {
			a.Own.WeakPolicies = []string{"liqonet-node"}
		}},
		{"deleted by hand", "liqonet-drift-01", "Peering alpha was deleted by hand", func(f *Facts, a, b *Cluster) {
			b.Peerings, b.Ledger = nil, &v1alpha1.ClusterNetwork{Spec: v1alpha1.ClusterNetworkSpec{Peers: []v1alpha1.PeerAllocation{{Name: "alpha", Phase: v1alpha1.PeerActive}}}}
		}},
		{"leftovers", "liqonet-leftover-01", "left over: Service gone", func(f *Facts, a, b *Cluster) { a.Own.Leftovers = []string{"Service gone"} }},
		{"others", "liqonet-leftover-02", "Kilo is installed", func(f *Facts, a, b *Cluster) { a.Others.Projects = []string{"Kilo"} }},
		{"lock", "liqonet-lock-01", "peer of u@m (1), which has run for 3s, does not renew its lock", func(f *Facts, a, b *Cluster) {
			a.Locks = []Lock{{Name: "peer of u@m (1), which has run for 3s", Lease: &coordinationv1.Lease{}, IsExpired: true}}
		}},
		{"setting", "liqonet-setting-01", "kube-proxy uses IPVS", func(f *Facts, a, b *Cluster) { a.Others.ProxyMode = "ipvs" }},
	}
}

// If no gateway has a right key of the peer, peer needs --replace, as nothing proves that it is the same cluster.
func TestRemedyOfWrongKey(t *testing.T) {
	for wrong, want := range map[int]string{1: "kubectl liqonet peer alpha beta", 2: "kubectl liqonet peer alpha beta --replace"} {
		f := healthy()
		f.Clusters[0].Peerings[0].Spec.Planes = nil
		for i := range int32(2) {
			key := fmt.Sprint("key of plane ", i)
			known := key
			if int(i) < wrong {
				known = "another key"
			}
			f.Clusters[0].Peerings[0].Spec.Planes = append(f.Clusters[0].Peerings[0].Spec.Planes, v1alpha1.Plane{Index: i, RemotePublicKey: known})
			f.Clusters[1].Peerings[0].Status.Planes = append(f.Clusters[1].Peerings[0].Status.Planes[:i], v1alpha1.PlaneStatus{Index: i, PublicKey: key})
			f.Clusters[0].Peerings[0].Status.Planes = append(f.Clusters[0].Peerings[0].Status.Planes[:i], v1alpha1.PlaneStatus{Index: i})
		}
		var hints []string
		for _, c := range Examine(f).Checks {
			for _, finding := range c.Findings {
				if c.Name == "liqonet-key-01" && finding.Result.IsProblem() {
					hints = append(hints, finding.Hint)
				}
			}
		}
		kit.ErrorIf(t, len(hints) != wrong || !slices.Equal(slices.Compact(hints), []string{want}),
			"%d wrong keys of 2: %q, want %q", wrong, hints, want)
	}
}

// Each check finds its fault, which is the cause of all other findings. No other fault has the same description.
func setLoss(c *Cluster, lease string, percent int) {
	b := c.Heartbeats[lease]
	b.LossPercent = percent
	c.Heartbeats[lease] = b
}

func TestFaults(t *testing.T) {
	var found []string
	for _, tt := range faults() {
		t.Run(tt.name, func(t *testing.T) {
			f := healthy()
			tt.make(f, f.Clusters[0], f.Clusters[1])
			r := Examine(f)
			i := slices.IndexFunc(r.Checks, func(c check.Check) bool { return c.Name == tt.check })
			kit.FatalIf(t, i < 0 || len(r.Checks[i].Findings) == 0, "%s has found nothing", tt.check)
			found = append(found, tt.check)
			if tt.says == "" {
				kit.ErrorIf(t, r.Cause != nil, "%+v is the cause", r.Cause)
				return
			}
			kit.FatalIf(t, r.Cause == nil || r.Cause.Check != tt.check || !strings.Contains(r.Cause.Problem, tt.says),
				"the cause is %+v", r.Cause)
			for _, c := range r.Checks {
				for _, other := range c.Findings {
					kit.ErrorIf(t, other.Check != tt.check && other.Result.IsProblem() && other.CausedBy == "",
						"it does not explain %s: %s", other.Check, other.Problem)
				}
			}
			for _, other := range faults() {
				kit.ErrorIf(t, other.says != "" && other.says != tt.says && strings.Contains(r.Cause.Problem, other.says),
					"%q is said of %s", other.says, tt.name)
			}
		})
	}
	var all []string
	for _, c := range Catalogue {
		all = append(all, c.Name)
	}
	slices.Sort(all)
	slices.Sort(found)
	kit.Check(t, "checks without a fault", slices.Compact(found), all)
}

// rename replaces names in all strings of a value, and in the keys of its maps.
func rename(v reflect.Value, names *strings.Replacer) {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() && v.Elem().Kind() != reflect.String {
			rename(v.Elem(), names)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				rename(v.Field(i), names)
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			rename(v.Index(i), names)
		}
	case reflect.Map:
		for _, key := range v.MapKeys() {
			value := reflect.New(v.Type().Elem()).Elem()
			value.Set(v.MapIndex(key))
			rename(value, names)
			now := reflect.New(key.Type()).Elem()
			now.Set(key)
			rename(now, names)
			v.SetMapIndex(key, reflect.Value{})
			v.SetMapIndex(now, value)
		}
	case reflect.String:
		if v.CanSet() {
			v.SetString(names.Replace(v.String()))
		}
	}
}

// A command in a hint runs nothing else, whatever names an API server returns.
func TestHintsQuoteNames(t *testing.T) {
	const cluster, peer, link = "al;pha", "be$(x)ta", "e`x`0"
	names := strings.NewReplacer("alpha", cluster, "beta", peer, "eth0", link, "loq0-0", "loq0-0;x", "gw.example", "gw;x.example")
	quoted, all := regexp.MustCompile(`'[^']*'`), 0
	for _, tt := range faults() {
		f := healthy()
		tt.make(f, f.Clusters[0], f.Clusters[1])
		rename(reflect.ValueOf(f), names)
		for _, c := range Examine(f).Checks {
			for _, finding := range c.Findings {
				hint := quoted.ReplaceAllString(strings.ReplaceAll(finding.Hint, "kubectl --context "+cluster, ""), "")
				hint = strings.ReplaceAll(hint, "kubectl --context "+peer, "")
				for _, evil := range []string{cluster, "$(", "`x", ";x"} {
					kit.ErrorIf(t, strings.Contains(hint, evil), "%s: %q", tt.name, finding.Hint)
				}
				all += strings.Count(finding.Hint, "'") / 2
			}
		}
	}
	kit.ErrorIf(t, all < 40, "only %d names were quoted: this proves little", all)
}

// A network that answers ARP itself, as on Azure or with proxy ARP, has no duplicate addresses. A machine that took one node's addresses
// does, even if it is another node.
func TestNetworkAnswersARP(t *testing.T) {
	const foreign = "12:34:56:78:9a:bc"
	for name, tt := range map[string]struct {
		make  func(one, two *probe.Kernel)
		found int
	}{
		"one for all nodes": {func(one, two *probe.Kernel) {
			one.Neighbors["172.18.1.12"], two.Neighbors["172.18.1.11"] = foreign, foreign
			one.Duplicates = map[string]string{"172.18.1.11": foreign}
		}, 0},
		"for each node's own address": {func(one, two *probe.Kernel) {
			one.Duplicates, two.Duplicates = map[string]string{"172.18.1.11": foreign}, map[string]string{"172.18.1.12": foreign}
		}, 0},
		"the router, for one node": {func(one, _ *probe.Kernel) { one.Neighbors["172.18.1.12"], one.Routers = foreign, []string{foreign} }, 0},
		"one address":              {func(one, _ *probe.Kernel) { one.Neighbors["172.18.1.12"] = foreign }, 1},
		"one address, seen twice": {func(one, two *probe.Kernel) {
			one.Neighbors["172.18.1.12"], two.Duplicates = foreign, map[string]string{"172.18.1.12": foreign}
		}, 1},
		"both addresses of a node": {func(one, two *probe.Kernel) {
			one.Neighbors["172.18.1.12"], two.Duplicates = foreign, map[string]string{"172.18.1.12": foreign, "192.0.2.12": foreign}
		}, 2},
		"another node": {func(one, two *probe.Kernel) {
			one.Neighbors["172.18.1.12"] = one.Links[0].MAC
			two.Neighbors["172.18.1.11"] = one.Links[0].MAC
		}, 1},
	} {
		f := healthy()
		tt.make(f.Clusters[0].Machines.Kernels["alpha-1"], f.Clusters[0].Machines.Kernels["alpha-2"])
		r := Examine(f)
		i := slices.IndexFunc(r.Checks, func(c check.Check) bool { return c.Name == "liqonet-duplicate-01" })
		kit.Check(t, name+": findings", len(r.Checks[i].WithResult(check.Failed)), tt.found)
	}
}

// Checks depend only on checks in the catalogue.
func TestDependencies(t *testing.T) {
	for _, c := range Catalogue {
		for _, name := range c.DependsOn {
			kit.ErrorIf(t, !slices.ContainsFunc(Catalogue, func(c Check) bool { return c.Name == name }),
				"%s depends on %s, which is not there", c.Name, name)
		}
	}
}

// says makes a node's agent report a problem.
func says(n *v1alpha1.NodeNetwork, problem string) {
	n.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: "CannotApply", Message: problem}}
}

// A cause does not explain findings outside of its reach.
func TestReach(t *testing.T) {
	f := healthy()
	f.Clusters[0].Machines.Kernels["alpha-1"].Unhealthy = "no answer"
	says(f.Clusters[0].Reports["alpha-2"], "no room")
	says(f.Clusters[1].Reports["beta-1"], "no room")
	r := Examine(f)
	for _, c := range r.Checks {
		for _, found := range c.Findings {
			kit.ErrorIf(t, found.CausedBy != "", "%s of %s follows from %s", found.Check, found.Node, found.CausedBy)
		}
	}
}

// Parts that cannot be read are listed as skipped, not as failures.
func TestNotSeen(t *testing.T) {
	f := healthy()
	for _, c := range f.Clusters {
		for _, part := range []Part{CRDs, Nodes, Pods, Accounts, Secrets, Policies, Peerings, Leases, Drifts, Leftovers, Kernels, Settings} {
			c.SkipReasons[part] = "you may not read " + string(part)
		}
	}
	r := Examine(f)
	kit.ErrorIf(t, r.Result != check.Passed || r.Cause != nil, "%s, %v", r.Result, r.Cause)
	seen := 0
	for _, c := range r.Checks {
		if c.Result == check.Skipped && (!strings.Contains(c.Findings[0].Problem, "you may not read") ||
			c.Message != c.Findings[0].Problem) {
			t.Errorf("%s: %v", c.Name, c.Findings)
		} else if c.Result == check.Passed {
			seen++
		}
	}
	kit.ErrorIf(t, seen > 7, "%d checks have seen enough", seen)
}

// Policies are interpreted in the same way as by network plugins.
func TestPolicies(t *testing.T) {
	udp := corev1.ProtocolUDP
	port := func(n int32) networkingv1.NetworkPolicyPort {
		return networkingv1.NetworkPolicyPort{Protocol: &udp, Port: new(intstr.FromInt32(n))}
	}
	block := func(cidr string, except ...string) []networkingv1.NetworkPolicyPeer {
		return []networkingv1.NetworkPolicyPeer{{IPBlock: &networkingv1.IPBlock{CIDR: cidr, Except: except}}}
	}
	ingress := func(rules ...networkingv1.NetworkPolicyIngressRule) networkingv1.NetworkPolicySpec {
		return networkingv1.NetworkPolicySpec{PolicyTypes: []networkingv1.PolicyType{"Ingress"}, Ingress: rules}
	}
	for _, tt := range []struct {
		name   string
		spec   networkingv1.NetworkPolicySpec
		denies bool
	}{
		{"nothing is let in", ingress(), true},
		{"everything is", ingress(networkingv1.NetworkPolicyIngressRule{}), false},
		{"from pods only", ingress(networkingv1.NetworkPolicyIngressRule{From: []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{}}}}), true},
		{"both ports", ingress(networkingv1.NetworkPolicyIngressRule{Ports: []networkingv1.NetworkPolicyPort{port(6094), port(51840)}}), false},
		{"one of them", ingress(networkingv1.NetworkPolicyIngressRule{Ports: []networkingv1.NetworkPolicyPort{port(51840)}}), true},
		{"from the nodes", ingress(networkingv1.NetworkPolicyIngressRule{From: block("172.18.0.0/16")}), false},
		{"but one", ingress(networkingv1.NetworkPolicyIngressRule{From: block("172.18.0.0/16", "172.18.1.12/32")}), true},
		{"other pods", networkingv1.NetworkPolicySpec{PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}}, false},
		{"egress only", networkingv1.NetworkPolicySpec{PolicyTypes: []networkingv1.PolicyType{"Egress"}}, true},
	} {
		f := healthy()
		f.Clusters[0].Own.Policies.Items = []networkingv1.NetworkPolicy{{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: tt.spec}}
		r := Examine(f)
		kit.ErrorIf(t, (r.Cause != nil) != tt.denies, "%s: %v", tt.name, r.Cause)
	}
}

// A check's line with result and name has at most 80 characters.
func TestWidth(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range Catalogue {
		n := len(c.Description)
		kit.ErrorIf(t, n > 46, "%s: %d characters: %s", c.Name, n, c.Description)
		kit.ErrorIf(t, len(c.Name) > 22 || seen[c.Name], "%s: its name", c.Name)
		seen[c.Name] = true
	}
}

// Which settings indicate an eBPF data plane.
func TestSettings(t *testing.T) {
	for _, tt := range []struct {
		of   Others
		want int
	}{
		{Others{}, 0},
		{Others{Cilium: map[string]string{"ipam": "cluster-pool"}}, 0},
		{Others{Cilium: map[string]string{"enable-bpf-masquerade": "true", "enable-host-legacy-routing": "true"}}, 0},
		{Others{Cilium: map[string]string{"enable-bpf-masquerade": "true"}}, 1},
		{Others{CalicoBPF: true, DataplaneV2: true}, 2},
	} {
		x := &examination{Cluster: &Cluster{Others: tt.of}}
		settings(x)
		kit.ErrorIf(t, len(x.found) != tt.want, "%+v: %v", tt.of, x.found)
	}
}
