package verify

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/check"
	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/probe"
	"github.com/liqonet/liqonet/test/kit"
)

func ip(s string) netip.Addr     { return netip.MustParseAddr(s) }
func cidr(s string) netip.Prefix { return netip.MustParsePrefix(s) }
func at(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }
func ips(s ...string) []netip.Addr {
	var out []netip.Addr
	for _, one := range s {
		out = append(out, ip(one))
	}
	return out
}

// pair returns two clusters with equal ranges and two nodes each.
func pair() (a, b *Side) {
	side := func(letter, name, peer string, number int, pods, nodes, remotePods, remoteNodes string) *Side {
		s := &Side{
			Letter: letter, Cluster: name, Kubectl: "kubectl --context " + name,
			Peering: &v1alpha1.Peering{ObjectMeta: metav1.ObjectMeta{Name: peer}, Spec: v1alpha1.PeeringSpec{Planes: []v1alpha1.Plane{{}, {Index: 1}}}},
			Translation: ipam.Translation{
				Pods: ipam.Mappings{{Real: cidr("10.244.0.0/16"), Mapped: cidr(pods)}}, Nodes: ipam.Mapping{Real: cidr("10.80.0.0/19"), Mapped: cidr(nodes)},
			},
			Remote:        []netip.Prefix{cidr(remotePods), cidr(remoteNodes)},
			APIServers:    []netip.AddrPort{at(fmt.Sprintf("172.18.%d.10:6443", number))},
			LocalService:  Service{IP: ip("10.96.0.5"), TCP: 30005, UDP: 30006},
			RemoteService: Service{IP: ip("10.96.0.6"), TCP: 30007, UDP: 30007},
		}
		for i := range 2 {
			s.Nodes = append(s.Nodes, Node{
				Name: fmt.Sprintf("%s-w%d", name, i+1), Addresses: ips(fmt.Sprintf("172.18.%d.%d", number, 11+i)), Overlay: ip(fmt.Sprintf("10.80.0.%d", i+1)),
				MTU: 1440, Gateways: []int32{int32(i)}, Pod: ip(fmt.Sprintf("10.244.%d.9", i)),
			})
		}
		return s
	}
	return side("a", "alpha", "beta", 1, "10.61.0.0/16", "10.71.0.0/19", "10.62.0.0/16", "10.72.0.0/18"),
		side("b", "beta", "alpha", 2, "10.62.0.0/16", "10.72.0.0/19", "10.61.0.0/16", "10.71.0.0/18")
}

// asked returns the tests of each check as ASKER PROTOCOL ADDRESS.
func asked(from, to *Side) map[string][]string {
	out := map[string][]string{}
	for _, q := range Tests(from, to) {
		link := strings.TrimSpace(q.Source + " " + string(q.Call.Protocol) + " " + q.Call.To.String() + " " + q.Call.Link)
		out[q.Check] = append(out[q.Check], link)
	}
	return out
}

func TestQuestions(t *testing.T) {
	got := asked(pair())
	want := map[string][]string{
		PodsTCP:      {"a0-pod tcp 10.62.0.9:5701", "a0-pod tcp 10.62.1.9:5701", "a1-pod tcp 10.62.0.9:5701", "a1-pod tcp 10.62.1.9:5701"},
		PodsICMP:     {"a0-pod icmp 10.62.0.9:5701", "a0-pod icmp 10.62.1.9:5701", "a1-pod icmp 10.62.0.9:5701", "a1-pod icmp 10.62.1.9:5701"},
		PodsMTU:      {"a0-pod udp 10.62.0.9:5701", "a0-pod udp 10.62.1.9:5701", "a1-pod udp 10.62.0.9:5701", "a1-pod udp 10.62.1.9:5701"},
		PodsTooLarge: {"a0-pod udp 10.62.0.9:5701", "a0-pod udp 10.62.1.9:5701", "a1-pod udp 10.62.0.9:5701", "a1-pod udp 10.62.1.9:5701"},
		Planes: {
			"a0-node udp 10.62.0.9:5701 loq0-0", "a0-node udp 10.62.0.9:5701 loq0-1", "a0-node udp 10.62.1.9:5701 loq0-0", "a0-node udp 10.62.1.9:5701 loq0-1",
			"a1-node udp 10.62.0.9:5701 loq0-0", "a1-node udp 10.62.0.9:5701 loq0-1", "a1-node udp 10.62.1.9:5701 loq0-0", "a1-node udp 10.62.1.9:5701 loq0-1",
		},
		ServiceClusterIP: {"a0-pod tcp 10.96.0.6:5701", "a0-pod udp 10.96.0.6:5701", "a1-pod tcp 10.96.0.6:5701", "a1-pod udp 10.96.0.6:5701"},
		IsolatedServices: {"a0-pod tcp 10.96.0.5:5701", "a1-pod tcp 10.96.0.5:5701"},
		IsolatedAPI: {
			"a0-pod tcp 10.72.0.1:6443", "a0-pod tcp 10.72.0.2:6443", "a1-pod tcp 10.72.0.1:6443", "a1-pod tcp 10.72.0.2:6443",
		},
	}
	for check, questions := range want {
		kit.Check(t, check, got[check], questions)
	}
	n := len(got[IsolatedOtherPeers])
	kit.ErrorIf(t, n != 0, "third clusters are asked %d times, and there is none", n)
}

// The tests depend on the nodes, probes and Services.
func TestQuestionsOf(t *testing.T) {
	tests := []struct {
		name   string
		change func(a, b *Side)
		check  string
		want   []string
	}{
		{"one node", func(a, b *Side) { a.Nodes, b.Nodes = a.Nodes[:1], b.Nodes[:1] }, PodsTCP, []string{"a0-pod tcp 10.62.0.9:5701"}},
		{"a pod that did not start", func(a, _ *Side) { a.Nodes[0].Pod = netip.Addr{} }, PodsTCP, []string{"a1-pod tcp 10.62.0.9:5701", "a1-pod tcp 10.62.1.9:5701"}},
		{"a peer's pod that did not start", func(_, b *Side) { b.Nodes[0].Pod = netip.Addr{} }, PodsTCP, []string{"a0-pod tcp 10.62.1.9:5701", "a1-pod tcp 10.62.1.9:5701"}},
		{"a node that is not asked", func(a, _ *Side) { a.Nodes[0].HostError = errors.New("refused") }, NodesToPods, []string{
			"a1-node tcp 10.62.0.9:5701", "a1-node udp 10.62.0.9:5701", "a1-node tcp 10.62.1.9:5701", "a1-node udp 10.62.1.9:5701",
		}},
		{"no NodePorts", func(a, b *Side) { a.RemoteService.TCP, a.RemoteService.UDP, b.LocalService.TCP = 0, 0, 0 }, ServiceNodePort, nil},
		{"no NodePorts of the peer", func(_, b *Side) { b.LocalService.TCP = 0 }, IsolatedNodePorts, nil},
		{"no MTU is known", func(a, _ *Side) { a.Nodes[0].MTU, a.Nodes[1].MTU = 0, 0 }, PodsMTU, nil},
		{"one plane", func(a, b *Side) {
			a.Peering.Spec.Planes, a.Nodes, b.Nodes = a.Peering.Spec.Planes[:1], a.Nodes[:1], b.Nodes[:1]
		}, Planes, []string{"a0-node udp 10.62.0.9:5701 loq0-0"}},
		{"nodes among the pods (EKS)", func(a, b *Side) {
			a.Nodes, b.Nodes = a.Nodes[:1], b.Nodes[:1]
			b.Translation.Pods = ipam.Mappings{{Real: cidr("172.18.0.0/16"), Mapped: cidr("172.18.0.0/16")}}
			b.Nodes[0].Pod = ip("172.18.2.99")
			a.Remote = []netip.Prefix{cidr("172.18.0.0/16")}
		}, IsolatedAPI, []string{"a0-pod tcp 10.72.0.1:6443", "a0-pod tcp 172.18.2.10:6443"}},
		{"addresses of nodes that mean somebody else", func(a, b *Side) {
			a.Nodes, b.Nodes = a.Nodes[:1], b.Nodes[:1]
			a.Remote = append(a.Remote, cidr("172.18.2.0/24"))
		}, IsolatedNodePorts, []string{"a0-pod tcp 10.72.0.1:30005"}},
		{"third clusters", func(a, b *Side) {
			a.Nodes = a.Nodes[:1]
			b.OtherPeers = []OtherPeer{{"gamma", ips("10.80.31.254")}}
		}, IsolatedOtherPeers, []string{"a0-pod icmp 10.72.31.254:0", "a0-pod tcp 10.72.31.254:6096"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a, b := pair()
			tt.change(a, b)
			kit.Check(t, "check", asked(a, b)[tt.check], tt.want)
		})
	}
}

// Packets are sent only to addresses of the two clusters.
func TestOnlyTheTwoClustersAreAsked(t *testing.T) {
	a, b := pair()
	b.OtherPeers = []OtherPeer{{"gamma", ips("10.80.31.254")}}
	theirs := []netip.Prefix{cidr("10.62.0.0/16"), cidr("10.72.0.0/18"), cidr("172.18.1.0/24"), cidr("172.18.2.0/24"), cidr("10.96.0.0/16")}
	for _, q := range Tests(a, b) {
		kit.ErrorIf(t, !slices.ContainsFunc(theirs, func(p netip.Prefix) bool { return p.Contains(q.Call.To.Addr()) }),
			"%s asks %s", q.Check, q.Call.To)
	}
}

func TestChoose(t *testing.T) {
	for _, tt := range []struct {
		name  string
		nodes []Node
		want  []string
	}{
		{"one node", []Node{{Name: "n1", Gateways: []int32{0}}}, []string{"n1"}},
		{"two planes on two nodes", []Node{{Name: "n1", Gateways: []int32{1}}, {Name: "n2", Gateways: []int32{0}}}, []string{"n2", "n1"}},
		{"a node without a gateway", []Node{{Name: "n1"}, {Name: "n2", Gateways: []int32{1}}, {Name: "n3", Gateways: []int32{0}}}, []string{"n3", "n2", "n1"}},
		{"many nodes", []Node{{Name: "n1"}, {Name: "n2"}, {Name: "n3", Gateways: []int32{0}}, {Name: "n4"}}, []string{"n3", "n4"}},
		{"no gateway runs", []Node{{Name: "n1"}, {Name: "n2"}}, []string{"n1", "n2"}},
		{"no gateway runs, many nodes", []Node{{Name: "n1"}, {Name: "n2"}, {Name: "n3"}}, []string{"n1", "n3"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got []string
			for _, n := range ChooseNodes(tt.nodes) {
				got = append(got, n.Name)
			}
			kit.Check(t, "got", got, tt.want)
		})
	}
}

// findingsOf returns the answers in a working peering.
func findingsOf(from, to *Side) Findings {
	f := Findings{Tests: Tests(from, to), Answers: map[string]probe.Answer{}, Sources: map[string]netip.Addr{}}
	for i := range from.Nodes {
		f.Sources[from.PodID(i)] = ip(fmt.Sprintf("10.244.%d.10", i))
		f.Counters = append(f.Counters, Counters{Node: &from.Nodes[i], Counters: probe.Counters{ToPeer: 9, FromPeer: 9, TunnelOut: 999, TunnelIn: 999}})
	}
	for _, q := range f.Tests {
		a := probe.Answer{ID: q.Call.ID, Tries: 4, Error: "no answer"}
		switch q.expect {
		case answer:
			a = probe.Answer{ID: q.Call.ID, Answered: true, Tries: 1}
			if len(q.responders) > 0 && q.Call.Protocol != probe.ICMP {
				a.From = q.responders[0]
			}
			if want, isPod := f.Sources[q.Source]; isPod {
				a.Source, _ = from.Translation.Translate(want)
			} else {
				a.Source, _ = from.Translation.Translate(q.node.Overlay)
			}
		case refusal:
			a.Refusal = &probe.Refusal{Type: 3, Code: 4, MTU: q.node.MTU, From: ip("10.244.0.1")}
		}
		f.Answers[q.Call.ID] = a
	}
	return f
}

func TestJudge(t *testing.T) {
	type change func(q Test, a *probe.Answer)
	of := func(check string, do func(*probe.Answer)) change {
		return func(q Test, a *probe.Answer) {
			if q.Check == check {
				do(a)
			}
		}
	}
	lost := func(a *probe.Answer) { *a = probe.Answer{ID: a.ID, Tries: 7, Error: "no answer"} }
	reached := func(source string) func(*probe.Answer) {
		return func(a *probe.Answer) { a.Answered, a.Error, a.From, a.Source = true, "", "b0-node", ip(source) }
	}
	tests := []struct {
		name   string
		answer change
		watch  func(*Counters)
		// want has the results of alpha's checks of beta, except those that pass.
		want map[string]check.Result
		// got is part of the evidence of any of these.
		got string
	}{
		{"all is well", nil, nil, nil, ""},
		{"no TCP", of(PodsTCP, lost), nil, map[string]check.Result{PodsTCP: check.Failed}, "no answer, sent 7 times"},
		{"no UDP", of(PodsUDP, lost), nil, map[string]check.Result{PodsUDP: check.Failed, PodsSource: check.Skipped}, "no answer"},
		{"the probe did not run", func(_ Test, a *probe.Answer) { a.ID = "" }, nil, nil, ""},
		{"pings are not allowed", of(PodsICMP, func(a *probe.Answer) { a.Answered, a.Error = false, "this pod may not send pings (sysctl)" }), nil, map[string]check.Result{PodsICMP: check.Skipped}, "may not send pings"},
		{"another source", of(PodsUDP, func(a *probe.Answer) { a.Source = ip("10.71.0.1") }), nil, map[string]check.Result{PodsSource: check.Failed}, "seen as 10.71.0.1 instead of 10.61.0.10"},
		{"another pod answers", of(PodsTCP, func(a *probe.Answer) { a.From = "a0-pod" }), nil, map[string]check.Result{PodsTCP: check.Failed}, "an answer from the pod on alpha-w1"},
		{"another MTU", of(PodsTooLarge, func(a *probe.Answer) { a.Refusal.MTU = 1400 }), nil, map[string]check.Result{PodsTooLarge: check.Failed}, "MTU 1400, and not an ICMP error with the MTU 1440"},
		{"no ICMP error", of(PodsTooLarge, lost), nil, map[string]check.Result{PodsTooLarge: check.Failed}, "and not an ICMP error"},
		{"pods with a small MTU", of(PodsTooLarge, func(a *probe.Answer) { a.Refusal = &probe.Refusal{MTU: 1400} }), nil, map[string]check.Result{PodsTooLarge: check.Skipped}, "carries no more than 1400"},
		{"a node is reached through the peering", of(IsolatedNodes, reached("10.61.0.10")), nil, map[string]check.Result{IsolatedNodes: check.Failed}, "which saw 10.61.0.10"},
		{"an API server is reached", of(IsolatedAPI, func(a *probe.Answer) { a.Answered = true }), nil, map[string]check.Result{IsolatedAPI: check.Failed}, "an answer"},
		{"a NodePort is reached outside of the peering", of(IsolatedNodePorts, reached("172.18.1.11")), nil, nil, ""},
		{"a cluster IP is one of the own cluster", of(IsolatedServices, func(a *probe.Answer) { a.Answered, a.From = true, "a0-pod" }), nil, nil, ""},
		{"unencrypted", nil, func(w *Counters) { w.Unencrypted = 3 }, map[string]check.Result{Encrypted: check.Failed}, "3 packets of the peer's ranges (10.62.0.0/16, 10.72.0.0/18) left it"},
		{"dropped, as it would have left unencrypted", nil, func(w *Counters) { w.Dropped = map[string]uint64{"postrouting/unencrypted": 3} }, map[string]check.Result{Encrypted: check.Failed, Drops: check.Failed}, "3 packets to peers were dropped"},
		{"nothing was seen", nil, func(w *Counters) { w.ToPeer = 0 }, map[string]check.Result{Encrypted: check.Skipped}, "bypasses nftables"},
		{"no tunnel was seen", nil, func(w *Counters) { w.TunnelOut, w.TunnelIn = 0, 0 }, map[string]check.Result{Encrypted: check.Skipped}, "no packet of the tunnel"},
		{"nothing was counted", nil, func(w *Counters) { w.Error = errors.New("violates PodSecurity") }, map[string]check.Result{Encrypted: check.Skipped, Drops: check.Skipped}, "violates PodSecurity"},
		{"drops of others", nil, func(w *Counters) { w.Dropped = map[string]uint64{"forward/not-a-pod": 4} }, nil, ""},
		{"drops, and something was lost", of(PodsTCP, lost), func(w *Counters) {
			w.Dropped = map[string]uint64{"forward/over-limit-new/loq0-0": 4, "prerouting/to-node": 2}
		}, map[string]check.Result{PodsTCP: check.Failed, Drops: check.Failed}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a, b := pair()
			ofA, ofB := findingsOf(a, b), findingsOf(b, a)
			for _, q := range ofA.Tests {
				if one := ofA.Answers[q.Call.ID]; tt.answer != nil {
					tt.answer(q, &one)
					ofA.Answers[q.Call.ID] = one
				}
			}
			for i := range ofA.Counters {
				if tt.watch != nil {
					tt.watch(&ofA.Counters[i])
				}
			}
			got, said := map[string]check.Result{}, ""
			for _, c := range Evaluate(a, b, ofA, ofB) {
				if c.Name == IsolatedOtherPeers {
					continue
				}
				if c.From != a.Cluster {
					kit.ErrorIf(t, c.Result != check.Passed, "%s of beta: %s", c.Name, c.Result)
					continue
				}
				kit.ErrorIf(t, strings.HasPrefix(c.Hint, "kubectl ") != (c.Result == check.Failed) || strings.Contains(c.Hint, "{"),
					"%s: %s, and the hint is %q", c.Name, c.Result, c.Hint)
				if c.Result != check.Passed {
					got[c.Name] = c.Result
					for _, k := range c.Findings {
						said += k.Evidence + "\n"
					}
				}
			}
			if want := tt.want; len(want)+len(got) > 0 {
				kit.Check(t, "got", got, want)
			}
			kit.ErrorIf(t, !strings.Contains(said, tt.got), "it says %q, not %q", said, tt.got)
		})
	}
}

// An address that is not reachable from inside of its cluster either proves nothing about isolation.
func TestControls(t *testing.T) {
	a, b := pair()
	ofA, ofB := findingsOf(a, b), findingsOf(b, a)
	for _, q := range ofB.Tests {
		if q.Check == control {
			ofB.Answers[q.Call.ID] = probe.Answer{ID: q.Call.ID, Error: "no answer"}
		}
	}
	for _, c := range Evaluate(a, b, ofA, ofB) {
		if c.From == a.Cluster && slices.Contains([]string{IsolatedNodePorts, IsolatedServices}, c.Name) && c.Result != check.Skipped {
			t.Errorf("%s: %s", c.Name, c.Result)
		}
	}
}

// A run without any pod-to-pod test proves nothing.
func TestConclude(t *testing.T) {
	for want, checks := range map[check.Result][]check.Check{
		check.Passed:  {{Name: PodsTCP, Result: check.Passed}, {Name: Planes, Result: check.Skipped}},
		check.Failed:  {{Name: PodsTCP, Result: check.Skipped}, {Name: Planes, Result: check.Failed}},
		check.Skipped: {{Name: PodsTCP, Result: check.Passed}, {Name: PodsTCP, Result: check.Skipped}},
	} {
		r := Report{Report: check.Report{Checks: checks}}
		r.Conclude()
		kit.ErrorIf(t, r.Result != want, "%v: %s, want %s", checks, r.Result, want)
	}
}

func TestSpeeds(t *testing.T) {
	fast, slow := &probe.Speed{BitsPerSecond: 2e9}, &probe.Speed{BitsPerSecond: 1e9}
	got := Speeds("n1", "n2", slow, fast)[0]
	kit.ErrorIf(t, *got.Tunnel != 1000 || *got.Direct != 2000 || *got.Ratio != 0.5,
		"%v %v %v", *got.Tunnel, *got.Direct, *got.Ratio)
	got = Speeds("n1", "n2", slow, nil)[0]
	kit.ErrorIf(t, got.Direct != nil || got.Ratio != nil || got.Tunnel == nil, "%+v", got)
}
