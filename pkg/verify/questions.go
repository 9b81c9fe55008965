package verify

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"github.com/liqonet/liqonet/pkg/probe"
	"github.com/liqonet/liqonet/pkg/wire"
)

// Times, in milliseconds, and sizes in bytes.
const (
	// answerTime is how long an answer is waited for, and serviceTime how long until nodes know a new service.
	answerTime  = 5000
	serviceTime = 6000
	// silence is how long nobody must answer.
	silence = 1500
	// bulk is what a connection carries, more than fits into the first packets.
	bulk = 100_000
	// fragmented is what fits into no packet of a usual link.
	fragmented = 4000
)

// expectation is what has to come of a question.
type expectation int

const (
	answer expectation = iota
	refusal
	nothing
)

// Question is one call, and what it is for.
type Question struct {
	Check string
	// Asker is the probe that asks.
	Asker string
	Call  probe.Call
	// on is the node of the asker, and by what else is to be said of it. to says who is asked.
	on, how, to string
	expect      expectation
	// by are the probes, one of which has to answer.
	by []string
	// mtu is the one that the refusal has to tell.
	mtu int
	// peer begins the names of probes that must not answer.
	peer string
	// control is what has to be answered inside of the other cluster, or the question says nothing.
	control string
}

// asking collects questions of one side to the other.
type asking struct {
	from, to *Side
	out      []Question
}

// Questions are what the probes of a side ask, those of the peer and, for comparison, its own.
func Questions(from, to *Side) []Question {
	a := &asking{from: from, to: to}
	for i, n := range from.Nodes {
		if n.Pod.IsValid() {
			a.ofPod(i)
		}
		if n.HostError == nil {
			a.ofNode(i)
		}
	}
	return a.out
}

// Calls are those of one probe.
func Calls(all []Question, asker string) (out []probe.Call) {
	for _, q := range all {
		if q.Asker == asker {
			out = append(out, q.Call)
		}
	}
	return out
}

// add asks. What is not set is what most have in common.
func (a *asking) add(q Question) {
	q.Call.ID = a.from.Letter + strconv.Itoa(len(a.out))
	if q.expect == nothing {
		q.Call.Timeout = silence
	}
	q.Call.Timeout = cmp.Or(q.Call.Timeout, answerTime)
	a.out = append(a.out, q)
}

// servers are the peer's pods, and by which addresses this side knows them.
func (a *asking) servers() (ids []string, known []netip.Addr, words []string) {
	for j, m := range a.to.Nodes {
		mapped, ok := a.to.Known.Translate(m.Pod)
		if !m.Pod.IsValid() || !ok {
			continue
		}
		ids, known = append(ids, a.to.PodID(j)), append(known, mapped)
		words = append(words, knownAs(mapped, m.Pod, "a pod on "+m.Name))
	}
	return ids, known, words
}

// knownAs is an address, and whose it is.
func knownAs(mapped, real netip.Addr, whose string) string {
	if mapped == real {
		return whose
	}
	return fmt.Sprintf("%s, %s", real, whose)
}

func (a *asking) ofPod(i int) {
	n := a.from.Nodes[i]
	asker := a.from.PodID(i)
	ids, known, words := a.servers()
	for j, to := range known {
		at := netip.AddrPortFrom(to, PodPort)
		ask := func(name string, expect expectation, c probe.Call) {
			c.To = at
			a.add(Question{Check: name, Asker: asker, Call: c, on: n.Name, to: words[j], by: ids[j : j+1], expect: expect, mtu: n.MTU})
		}
		ask(PodsTCP, answer, probe.Call{Protocol: probe.TCP, Size: bulk})
		ask(PodsUDP, answer, probe.Call{Protocol: probe.UDP})
		ask(PodsICMP, answer, probe.Call{Protocol: probe.ICMP})
		ask(PodsFragments, answer, probe.Call{Protocol: probe.UDP, Size: max(fragmented, 2*n.MTU)})
		if n.MTU > 0 {
			ask(PodsMTU, answer, probe.Call{Protocol: probe.UDP, Size: n.MTU, DontFragment: true, OrLess: true})
			ask(PodsTooLarge, refusal, probe.Call{Protocol: probe.UDP, Size: n.MTU + 1, DontFragment: true})
		}
	}
	a.services(asker, n.Name, ids)
	a.isolation(asker, n.Name)
	// Whether the same is reached from inside.
	for j, m := range a.from.Nodes {
		for _, addr := range m.Addresses {
			if m.HostError == nil {
				a.inside(asker, n.Name, ofHost(a.from, j), netip.AddrPortFrom(addr, NodePort))
			}
			if a.from.Own.TCP > 0 && m.Pod.IsValid() { // it leads to pods of that node only
				a.inside(asker, n.Name, ofNodePorts(a.from), netip.AddrPortFrom(addr, a.from.Own.TCP))
			}
		}
	}
	if a.from.Own.IP.IsValid() {
		a.inside(asker, n.Name, ofServices(a.from), netip.AddrPortFrom(a.from.Own.IP, PodPort))
	}
}

// What questions of isolation depend on.
func ofHost(s *Side, node int) string { return s.HostID(node) }
func ofNodePorts(s *Side) string      { return s.Letter + "-node-ports" }
func ofServices(s *Side) string       { return s.Letter + "-services" }

func (a *asking) inside(asker, on, what string, to netip.AddrPort) {
	a.add(Question{
		Check: control, Asker: asker, Call: probe.Call{Protocol: probe.TCP, To: to, Timeout: serviceTime}, on: on, to: to.String(), control: what,
	})
}

// services asks by a service of this cluster whose endpoints are the peer's pods.
func (a *asking) services(asker, on string, ids []string) {
	s := a.from.Abroad
	ask := func(name string, p probe.Protocol, to netip.AddrPort, what string) {
		a.add(Question{Check: name, Asker: asker, Call: probe.Call{Protocol: p, To: to, Timeout: serviceTime}, on: on, to: what, by: ids})
	}
	for i, p := range []probe.Protocol{probe.TCP, probe.UDP} {
		port := []uint16{s.TCP, s.UDP}[i]
		if s.IP.IsValid() {
			ask(ServiceClusterIP, p, netip.AddrPortFrom(s.IP, PodPort), "a cluster IP of "+a.from.Cluster)
		}
		for _, n := range a.from.Nodes {
			for _, addr := range n.Addresses {
				if port > 0 {
					ask(ServiceNodePort, p, netip.AddrPortFrom(addr, port), "a NodePort of "+n.Name)
				}
			}
		}
	}
}

// isolation asks what must not answer. By addresses that the peering leads to it asks for anything; by others, which the networks around
// may lead to, what tells from where it was asked. What no probe of the other cluster serves is only connected to.
func (a *asking) isolation(asker, on string) {
	silent := func(name string, p probe.Protocol, to netip.Addr, port uint16, what, control string) {
		a.add(Question{
			Check: name, Asker: asker, expect: nothing, on: on, to: what, peer: a.to.Letter, control: control,
			Call: probe.Call{Protocol: p, To: netip.AddrPortFrom(to, port), ConnectOnly: p == probe.TCP && control == ""},
		})
	}
	for j, m := range a.to.Nodes {
		node := func(to, real netip.Addr) (what string) {
			what = knownAs(to, real, "node "+m.Name)
			if m.HostError == nil {
				silent(IsolatedNodes, probe.TCP, to, NodePort, what, ofHost(a.to, j))
			}
			if a.to.Own.TCP > 0 && m.Pod.IsValid() {
				silent(IsolatedNodePorts, probe.TCP, to, a.to.Own.TCP, what, ofNodePorts(a.to))
			}
			return what
		}
		if seen, ok := a.to.Known.Nodes.Translate(m.Overlay); ok {
			what := node(seen, m.Overlay)
			if m.HostError == nil {
				silent(IsolatedNodes, probe.UDP, seen, NodePort, what, ofHost(a.to, j))
			}
			silent(IsolatedNodes, probe.ICMP, seen, 0, what, "")
			for _, port := range a.apiPorts() {
				silent(IsolatedAPI, probe.TCP, seen, port, what, "")
			}
		}
		for _, addr := range m.Addresses {
			for _, to := range a.waysTo(addr) {
				node(to, addr)
			}
		}
	}
	if a.to.Own.IP.IsValid() {
		for _, to := range a.waysTo(a.to.Own.IP) {
			silent(IsolatedServices, probe.TCP, to, PodPort, knownAs(to, a.to.Own.IP, "a cluster IP of "+a.to.Cluster), ofServices(a.to))
		}
	}
	for _, api := range a.to.APIServers {
		if to, ok := a.to.Known.Pods.Translate(api.Addr()); ok {
			silent(IsolatedAPI, probe.TCP, to, api.Port(), knownAs(to, api.Addr(), "an API server of "+a.to.Cluster), "")
		}
	}
	for _, third := range a.to.Third {
		for _, gateway := range third.Gateways {
			if seen, ok := a.to.Known.Nodes.Translate(gateway); ok {
				what := knownAs(seen, gateway, "the gateway to "+third.Name)
				silent(IsolatedThird, probe.ICMP, seen, 0, what, "")
				silent(IsolatedThird, probe.TCP, seen, wire.ExchangePort, what, "")
			}
		}
	}
}

// waysTo are the addresses by which something of the peer that is no pod might be reached. One is what it would be known by if it were a
// pod. The other one is its own, unless the peering makes that somebody else's.
func (a *asking) waysTo(addr netip.Addr) (out []netip.Addr) {
	if mapped, ok := a.to.Known.Pods.Translate(addr); ok {
		out = append(out, mapped)
	}
	if !a.from.Leads(addr) {
		out = append(out, addr)
	}
	return slices.Compact(out)
}

func (a *asking) apiPorts() (out []uint16) {
	for _, api := range a.to.APIServers {
		out = append(out, api.Port())
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func (a *asking) ofNode(i int) {
	n := a.from.Nodes[i]
	asker := a.from.HostID(i)
	ids, known, words := a.servers()
	for j, to := range known {
		at := netip.AddrPortFrom(to, PodPort)
		for _, p := range []probe.Protocol{probe.TCP, probe.UDP} {
			a.add(Question{Check: NodesToPods, Asker: asker, Call: probe.Call{Protocol: p, To: at}, on: n.Name, to: words[j], by: ids[j : j+1]})
		}
		for _, plane := range a.from.Planes {
			link := wire.NodeLink(a.from.Index, plane)
			a.add(Question{
				Check: Planes, Asker: asker, Call: probe.Call{Protocol: probe.UDP, To: at, Link: link},
				on: n.Name, how: fmt.Sprintf(" by plane %d (%s)", plane, link), to: words[j], by: ids[j : j+1],
			})
		}
	}
}
