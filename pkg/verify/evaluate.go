package verify

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/samber/lo"

	"github.com/liqonet/liqonet/pkg/check"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/probe"
)

// control is not a check: its tests must be answered, or the isolation checks prove nothing.
const control = "control"

// Hints of checks. {kubectl} is kubectl for the sending cluster, and {there} for the other one. Their names are {from} and {to}. {peering} is
// the name of the sending cluster's Peering.
const (
	seeDoctor   = "kubectl liqonet doctor {from} {to}" // status measures with UDP, and may say that all is well
	seeWide     = "kubectl liqonet status {from} {to} -o wide"
	seePolicies = "{there} get networkpolicies -A"
	seeAgents   = "{kubectl} -n liqonet-system get pods -o wide"
	seePeer     = "{there} -n liqonet-system get pods -o wide"
	seeServices = "{kubectl} -n kube-system get pods -o wide"
)

// The checks, in the order in which they are shown.
var (
	PodsTCP            = add("pods-tcp", "pod to pod, TCP", seeDoctor)
	PodsUDP            = add("pods-udp", "pod to pod, UDP", seeDoctor)
	PodsICMP           = add("pods-icmp", "pod to pod, pings", seePolicies)
	PodsMTU            = add("pods-mtu", "full packets in one piece", seeWide)
	PodsTooLarge       = add("pods-too-large", "one byte more: ICMP error", seeWide)
	PodsFragments      = add("pods-fragments", "fragments", seeWide)
	PodsSource         = add("pods-source", "source addresses of pods", "{kubectl} get peering {peering} -o yaml")
	NodesToPods        = add("nodes-to-pods", "node to pod", seeWide)
	NodesSource        = add("nodes-source", "source addresses of nodes", "{kubectl} get nodenetworks")
	ServiceClusterIP   = add("service-cluster-ip", "remote pods by cluster IP", seeServices)
	ServiceNodePort    = add("service-node-port", "remote pods by NodePort", seeServices)
	ServiceImported    = add("service-imported", "imported services", "kubectl liqonet services {from} {to}")
	Planes             = add("planes", "each plane by itself", "{kubectl} -n liqonet-system get pods -l liqonet.io/peering={peering} -o wide")
	IsolatedNodes      = add("isolated-nodes", "nodes out of reach", seePeer)
	IsolatedNodePorts  = add("isolated-node-ports", "NodePorts out of reach", seePeer)
	IsolatedServices   = add("isolated-cluster-ips", "cluster IPs out of reach", seePeer)
	IsolatedAPI        = add("isolated-api-server", "API server out of reach", seePeer)
	IsolatedOtherPeers = add("isolated-third-clusters", "third clusters unreachable", seePeer)
	Encrypted          = add("encrypted", "nothing leaves unencrypted", seeAgents)
	Drops              = add("drops", "drop counters", seeAgents)
)

// checks are all checks.
var checks []check.Check

// add adds a check, and returns its name.
func add(name, about, hint string) string {
	checks = append(checks, check.Check{Name: name, Description: about, Hint: hint})
	return name
}

// Report is the result of a run.
type Report struct {
	// Clusters are the names of the two clusters.
	Clusters []string `json:"clusters"`
	// Seconds is the duration of the run.
	Seconds float64 `json:"seconds"`
	// Notes list what was left out.
	Notes []string `json:"notes,omitempty"`
	// The result is failed if a check has failed, and skipped if pods could not be tested.
	check.Report `json:",inline"`
	// Bench has the measured speeds.
	Bench []Speed `json:"bench,omitempty"`
}

// Conclude sets the result. If no pod could contact another one, nothing was verified.
func (r *Report) Conclude() {
	switch {
	case r.Counts()[check.Failed] > 0:
		r.Result = check.Failed
	case lo.ContainsBy(r.Checks, func(c check.Check) bool { return c.Name == PodsTCP && c.Result == check.Skipped }):
		r.Result = check.Skipped
	default:
		r.Result = check.Passed
	}
}

// Speed is a measurement through the tunnel, and the same one between the nodes.
type Speed struct {
	// What is throughput, latency-p50, latency-p99 or requests, measured in Unit.
	What string `json:"what"`
	Unit string `json:"unit"`
	// From and To are the names of nodes.
	From string `json:"from"`
	To   string `json:"to"`
	// Tunnel is the value from pod to pod, nil if it could not be measured.
	Tunnel *float64 `json:"tunnel,omitempty"`
	// Direct is the value from node to node without the tunnel, nil if the nodes do not reach each other.
	Direct *float64 `json:"bare,omitempty"`
	// Ratio is Tunnel divided by Direct.
	Ratio *float64 `json:"ratio,omitempty"`
}

// Speeds returns the measurements from one node to another. Arguments are nil if they were not measured.
func Speeds(from, to string, tunnel, direct *probe.Speed) (out []Speed) {
	of := func(s *probe.Speed) (out [4]*float64) {
		if s != nil {
			out = [...]*float64{new(s.BitsPerSecond / 1e6), &s.MedianMicroseconds, &s.SlowMicroseconds, &s.RequestsPerSecond}
		}
		return out
	}
	kinds := [...]struct{ what, unit string }{{"throughput", "Mbit/s"}, {"latency-p50", "us"}, {"latency-p99", "us"}, {"requests", "1/s"}}
	for i, k := range kinds {
		s := Speed{What: k.what, Unit: k.unit, From: from, To: to, Tunnel: of(tunnel)[i], Direct: of(direct)[i]}
		if s.Tunnel != nil && s.Direct != nil && *s.Direct > 0 {
			s.Ratio = new(*s.Tunnel / *s.Direct)
		}
		out = append(out, s)
	}
	return out
}

// The type and code of the ICMP error about a packet that is too large: destination unreachable, fragmentation needed (RFC 792, RFC 1191).
const unreachable, fragmentationNeeded = 3, 4

// Counters has the counters of a node or gateway while probes sent packets.
type Counters struct {
	// Node is nil for the gateway of Plane. Only drops are counted there.
	Node  *Node
	Plane int32
	probe.Counters
	// Error is why the counters are missing.
	Error error
}

// finding returns a finding that has passed, or was skipped if the counters are missing.
func (w *Counters) finding(evidence string) check.Finding {
	from := fmt.Sprintf("gateway of plane %d", w.Plane)
	if w.Node != nil {
		from = "node " + w.Node.Name
	}
	if w.Error != nil {
		return check.Finding{From: from, Result: check.Skipped, Evidence: "there are no counters: " + w.Error.Error()}
	}
	return check.Finding{From: from, Result: check.Passed, Evidence: evidence}
}

// Findings are the results of the probes of one side.
type Findings struct {
	Tests []Test
	// Answers are the answers by the IDs of the tests. They are missing if the probe did not run.
	Answers map[string]probe.Answer
	// Sources are the addresses of the asking pods, by the names of their probes.
	Sources  map[string]netip.Addr
	Counters []Counters
}

// Evaluate returns the checks that result from the findings of both sides, each check in one direction and then in the other.
func Evaluate(a, b *Side, ofA, ofB Findings) (out []check.Check) {
	there, back := evaluate(a, b, ofA, ofB), evaluate(b, a, ofB, ofA)
	for _, k := range checks {
		if k.Name == ServiceImported && len(a.Imported)+len(b.Imported) == 0 {
			continue
		}
		if k.Name == Drops { // the last check
			lost := slices.ContainsFunc(out, func(c check.Check) bool { return c.Result == check.Failed })
			there[Drops], back[Drops] = checkDrops(ofA.Counters, lost), checkDrops(ofB.Counters, lost)
		}
		out = append(out, conclude(k, a, b, there[k.Name]), conclude(k, b, a, back[k.Name]))
	}
	return out
}

// evaluation is the context for evaluating the answers that one side got.
type evaluation struct {
	from, to *Side
	// reached has the controls that were answered inside of the other cluster.
	reached map[string]bool
	// names describe the probes.
	names map[string]string
}

// evaluate returns the findings of one side by check. The findings of the other side show what is reachable from inside of it.
func evaluate(from, to *Side, here, there Findings) map[string][]check.Finding {
	j := evaluation{from: from, to: to, names: map[string]string{}}
	j.reached = lo.FilterSliceToMap(there.Tests, func(q Test) (string, bool, bool) {
		return q.control, true, q.Check == control && there.Answers[q.Call.ID].Answered
	})
	for _, s := range []*Side{from, to} {
		for i, n := range s.Nodes {
			j.names[s.PodID(i)], j.names[s.HostID(i)] = "the pod on "+n.Name, "node "+n.Name
		}
	}
	out := map[string][]check.Finding{Encrypted: checkEncryption(from, here.Counters)}
	for _, q := range here.Tests {
		if q.Check == control {
			continue
		}
		a, asked := here.Answers[q.Call.ID]
		addr, isPod := here.Sources[q.Source]
		c := j.evaluate(q, a, asked)
		c.From = "node " + q.node.Name + q.detail
		if isPod {
			c.From = fmt.Sprintf("pod %s on %s", addr, q.node.Name)
		} else if !asked && q.node.HostError != nil {
			c.Evidence += ": " + q.node.HostError.Error()
		}
		out[q.Check] = append(out[q.Check], c)
		switch {
		case q.Check == PodsUDP:
			want, _ := from.Translation.Translate(addr)
			out[PodsSource] = append(out[PodsSource], evaluateSource(a, c, want))
		case q.Check == NodesToPods && q.Call.Protocol == probe.UDP:
			want, _ := from.Translation.Nodes.Translate(q.node.Overlay)
			out[NodesSource] = append(out[NodesSource], evaluateSource(a, c, want))
		}
	}
	return out
}

// evaluateSource checks the source address that an answer reports.
func evaluateSource(a probe.Answer, c check.Finding, want netip.Addr) check.Finding {
	switch {
	case c.Result == check.Skipped:
	case !a.Answered:
		c.Result, c.Evidence = check.Skipped, "there was no answer"
	case a.Source != want:
		c.Result, c.Evidence = check.Failed, fmt.Sprintf("it was seen as %s instead of %s", a.Source, want)
	default:
		c.Result, c.Evidence = check.Passed, fmt.Sprintf("it was seen as %s", a.Source)
	}
	return c
}

func (j *evaluation) evaluate(q Test, a probe.Answer, asked bool) check.Finding {
	c := check.Finding{To: q.to, Sent: describeSent(q.Call, a), Result: check.Passed, Evidence: describeReply(a, j.names)}
	_, isOurs := j.from.Translation.Reverse(a.Source) // the peer sees an address of this cluster
	switch {
	case !asked:
		c.Result, c.Evidence = check.Skipped, "the probe did not run"
	case strings.Contains(a.Error, "may not send pings"):
		c.Result = check.Skipped
	case q.expect == answer:
		if !a.Answered || a.From != "" && !slices.Contains(q.responders, a.From) {
			c.Result = check.Failed
		}
	case q.expect == refusal:
		evaluateRefusal(&c, a.Refusal, q.node.MTU)
	case q.control != "" && !j.reached[q.control]:
		c.Result, c.Evidence = check.Skipped, "it is not reachable inside of its own cluster either"
	case !a.Answered, a.From != "" && !strings.HasPrefix(a.From, j.to.Letter):
	case a.From != "" && !isOurs:
		c.Evidence = fmt.Sprintf("it was reached outside of the peering, from %s", a.Source)
	default:
		c.Result = check.Failed
	}
	return c
}

// evaluateRefusal checks the response to a packet that is larger than the MTU.
func evaluateRefusal(c *check.Finding, r *probe.Refusal, mtu int) {
	switch {
	case r != nil && r.Type == 0 && r.MTU > 0 && r.MTU <= mtu:
		c.Result, c.Evidence = check.Skipped, fmt.Sprintf("the pod's own interface carries no more than %d bytes", r.MTU)
	case r == nil || r.Type != unreachable || r.Code != fragmentationNeeded || r.MTU != mtu:
		c.Result = check.Failed
		c.Evidence += fmt.Sprintf(", and not an ICMP error with the MTU %d", mtu)
	}
}

// describeSent describes the packet that was sent.
func describeSent(c probe.Call, a probe.Answer) string {
	what := strings.ToUpper(string(c.Protocol)) + " to " + c.To.String()
	if c.Protocol == probe.ICMP {
		what = "a ping to " + c.To.Addr().String()
	}
	switch size := cmp.Or(a.Size, c.Size); {
	case size == 0:
		return what
	case c.DontFragment:
		return fmt.Sprintf("%d bytes in one piece by %s", size, what)
	case c.Protocol == probe.UDP:
		return fmt.Sprintf("%d bytes in fragments by %s", size, what)
	default:
		return fmt.Sprintf("%d bytes by %s", size, what)
	}
}

// describeReply describes the response.
func describeReply(a probe.Answer, names map[string]string) string {
	r := a.Refusal
	switch {
	case a.Answered && a.From == "":
		return "an answer"
	case a.Answered:
		return fmt.Sprintf("an answer from %s, which saw %s", cmp.Or(names[a.From], "another probe"), a.Source)
	case r != nil && r.Type == 0 && r.MTU > 0:
		return fmt.Sprintf("refused by the sender's kernel, MTU %d", r.MTU)
	case r != nil && r.MTU > 0:
		return fmt.Sprintf("an ICMP error from %s, MTU %d", r.From, r.MTU)
	case r != nil && r.Type != 0:
		return fmt.Sprintf("an ICMP error from %s, type %d code %d", r.From, r.Type, r.Code)
	case a.Tries > 1:
		return fmt.Sprintf("%s, sent %d times", a.Error, a.Tries)
	}
	return a.Error
}

// unencrypted is a node's counter of packets to peers that did not leave because they would not have been encrypted.
const unencrypted = "postrouting/unencrypted"

// checkEncryption checks the packets that left the nodes of a side.
func checkEncryption(s *Side, all []Counters) (out []check.Finding) {
	for _, w := range all {
		if w.Node == nil {
			continue
		}
		c := w.finding(fmt.Sprintf("%d packets to the peer and %d from it through the overlay, none unencrypted", w.ToPeer, w.FromPeer))
		hasGateway := len(w.Node.Gateways) > 0
		const unseen = " was seen: the network plugin bypasses nftables, or none was sent"
		switch {
		case w.Error != nil:
		case w.Unencrypted > 0:
			ranges := strings.Trim(strings.ReplaceAll(fmt.Sprint(s.Remote), " ", ", "), "[]")
			c.Result = check.Failed
			c.Evidence = fmt.Sprintf("%d packets of the peer's ranges (%s) left it through an interface other than the overlay", w.Unencrypted, ranges)
		case w.Dropped[unencrypted] > 0:
			c.Result = check.Failed
			c.Evidence = fmt.Sprintf("%d packets to peers were dropped, because they would have left it through an interface other than the overlay: see kubectl liqonet doctor", w.Dropped[unencrypted])
		case w.ToPeer == 0 && (w.Node.Pod.IsValid() || w.Node.HostError == nil): // probes on it sent packets to the peer
			c.Result, c.Evidence = check.Skipped, "no packet to the peer"+unseen
		case hasGateway && w.TunnelOut+w.TunnelIn == 0:
			c.Result, c.Evidence = check.Skipped, "no packet of the tunnel"+unseen
		case hasGateway:
			c.Evidence += fmt.Sprintf("; encrypted %d bytes out, %d in", w.TunnelOut, w.TunnelIn)
		}
		out = append(out, c)
	}
	return out
}

// checkDrops checks the drop counters of nodes and gateways. Drops alone are not a failure, as the probes are not the only senders. If a
// check has failed, they may be the reason.
func checkDrops(all []Counters, lost bool) (out []check.Finding) {
	// Reasons for which packets of the isolation checks, and those that kernels send unprompted, are dropped.
	provoked := []string{"to-node", "not-reachable", "new-connection", "to-gateway", "not-allowed", "ipv6"}
	for _, w := range all {
		c := w.finding("nothing was dropped")
		var others, dropped []string
		for _, name := range slices.Sorted(maps.Keys(w.Dropped)) {
			dropped = append(dropped, fmt.Sprintf("%s %d", name, w.Dropped[name]))
			if !slices.ContainsFunc(provoked, func(reason string) bool { return strings.Contains(name, "/"+reason) }) {
				others = append(others, dropped[len(dropped)-1])
			}
		}
		switch {
		case w.Error != nil:
		case len(others) > 0 && lost:
			c.Result, c.Evidence = check.Failed, "it has dropped in the meantime: "+strings.Join(others, ", ")
		case len(dropped) > 0:
			c.Evidence = "dropped: " + strings.Join(dropped, ", ")
		}
		out = append(out, c)
	}
	return out
}

// conclude returns the check with its findings and result.
func conclude(c check.Check, from, to *Side, found []check.Finding) check.Check {
	c.From, c.To, c.Findings, c.Result = from.Cluster, to.Cluster, found, check.Skipped
	if len(c.WithResult(check.Passed)) > 0 {
		c.Result = check.Passed
	}
	hint := strings.NewReplacer("{kubectl}", from.Kubectl, "{there}", to.Kubectl, "{from}", failure.Quote(from.Cluster), "{to}", failure.Quote(to.Cluster), "{peering}", failure.Quote(from.Peering.Name)).Replace(c.Hint)
	c.Hint = ""
	if len(c.WithResult(check.Failed)) > 0 {
		c.Result, c.Hint = check.Failed, hint
	}
	if i := slices.IndexFunc(found, func(f check.Finding) bool { return f.Result == check.Skipped }); i >= 0 {
		c.Message = found[i].From + ": " + found[i].Evidence
	} else if len(found) == 0 {
		c.Message = skipReason(c.Name, from, to)
	}
	return c
}

// skipReason returns why a check has no findings.
func skipReason(name string, from, to *Side) string {
	switch {
	case name == IsolatedOtherPeers && len(to.OtherPeers) == 0:
		return "the other cluster has no other peers"
	case (name == ServiceClusterIP || name == ServiceNodePort) && from.RemoteService.Error != nil:
		return "the Service could not be created: " + from.RemoteService.Error.Error()
	case (name == IsolatedNodePorts || name == IsolatedServices) && to.LocalService.Error != nil:
		return fmt.Sprintf("the Service in %s could not be created: %s", to.Cluster, to.LocalService.Error.Error())
	case name == ServiceImported && len(from.Imported) == 0:
		return "no service of the other cluster is imported"
	case name == IsolatedAPI && len(to.APIServers) == 0:
		return "its address is not known"
	}
	for _, n := range slices.Concat(from.Nodes, to.Nodes) {
		if n.PodError != nil {
			return n.PodError.Error()
		}
	}
	return "there is nothing to test"
}
