package verify

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/liqonet/liqonet/pkg/check"
	"github.com/liqonet/liqonet/pkg/probe"
)

// The ICMP error about a packet that is too large: destination unreachable, fragmentation needed (RFC 792, RFC 1191).
const unreachable, fragmentationNeeded = 3, 4

// Watched is what was counted on a node while probes asked.
type Watched struct {
	Node string
	// Plane is the plane of a gateway of which only drops are known, nil for a node.
	Plane *int32
	// Gateway says that an end of the tunnel is on it.
	Gateway bool
	probe.Watched
	// Error is why nothing was counted.
	Error error
}

// Findings are what the probes of a side have found out.
type Findings struct {
	Questions []Question
	// Answers are those to the questions, by their IDs. Of a probe that did not run there are none.
	Answers map[string]probe.Answer
	// Askers are the addresses of pods that ask, by the names of their probes.
	Askers  map[string]netip.Addr
	Watched []Watched
}

// Judge says what the findings of both sides mean: of each check, first in the one direction and then in the other.
func Judge(a, b *Side, ofA, ofB Findings) (out []check.Check) {
	there, back := judge(a, b, ofA, ofB), judge(b, a, ofB, ofA)
	for _, k := range checks() {
		if k.Name == Drops { // it is the last one
			lost := slices.ContainsFunc(out, func(c check.Check) bool { return c.Result == check.Failed })
			there[Drops], back[Drops] = drops(ofA.Watched, lost), drops(ofB.Watched, lost)
		}
		out = append(out, conclude(k, a, b, there[k.Name]), conclude(k, b, a, back[k.Name]))
	}
	return out
}

// judge says what the findings of one side mean, by checks. there are those of the other side, which say what is reached inside of it.
func judge(from, to *Side, here, there Findings) map[string][]check.Finding {
	reached, names := controls(there), namesOf(from, to)
	out := map[string][]check.Finding{Encrypted: encrypted(from, here.Watched)}
	for _, q := range here.Questions {
		if q.Check == control {
			continue
		}
		a, asked := here.Answers[q.Call.ID]
		c := q.judge(from, a, asked, reached, names)
		c.From = "node " + q.on + q.how
		if addr, isPod := here.Askers[q.Asker]; isPod {
			c.From = fmt.Sprintf("pod %s on %s", addr, q.on)
		}
		out[q.Check] = append(out[q.Check], c)
		if name, want := q.source(from, here.Askers); name != "" {
			out[name] = append(out[name], judgeSource(a, c, want))
		}
	}
	return out
}

// namesOf are the probes in words.
func namesOf(sides ...*Side) map[string]string {
	out := map[string]string{}
	for _, s := range sides {
		for i, n := range s.Nodes {
			out[s.PodID(i)], out[s.HostID(i)] = "the pod on "+n.Name, "node "+n.Name
		}
	}
	return out
}

// controls are what is reached from inside of a cluster.
func controls(f Findings) map[string]bool {
	out := map[string]bool{}
	for _, q := range f.Questions {
		if q.Check == control {
			out[q.control] = out[q.control] || f.Answers[q.Call.ID].Answered
		}
	}
	return out
}

// source is the check about the source that the answer to a question tells, and which one that has to be.
func (q Question) source(from *Side, askers map[string]netip.Addr) (name string, want netip.Addr) {
	if q.Call.Protocol != probe.UDP || q.Call.Size > 0 {
		return "", want
	}
	switch q.Check {
	case PodsUDP:
		name = PodsSource
		want, _ = from.Known.Translate(askers[q.Asker])
	case NodesToPods:
		name = NodesSource
		i := slices.IndexFunc(from.Nodes, func(n Node) bool { return n.Name == q.on })
		want, _ = from.Known.Nodes.Translate(from.Nodes[i].Overlay)
	}
	return name, want
}

func judgeSource(a probe.Answer, asked check.Finding, want netip.Addr) check.Finding {
	c := asked
	c.Result, c.Evidence = check.Passed, fmt.Sprintf("it was seen as %s", a.Source)
	switch {
	case asked.Result == check.Skipped:
		c.Result, c.Evidence = check.Skipped, asked.Evidence
	case !a.Answered:
		c.Result, c.Evidence = check.Skipped, "nobody has answered"
	case a.Source != want:
		c.Result, c.Evidence = check.Failed, fmt.Sprintf("it was seen as %s, and should be as %s", a.Source, want)
	}
	return c
}

func (q Question) judge(from *Side, a probe.Answer, asked bool, reached map[string]bool, names map[string]string) check.Finding {
	c := check.Finding{To: q.to, Sent: sent(q.Call, a), Result: check.Passed, Evidence: got(a, names)}
	switch {
	case !asked:
		c.Result, c.Evidence = check.Skipped, "the probe did not run"
		if err := from.whyNone(q.Asker); err != nil {
			c.Evidence += ": " + err.Error()
		}
	case strings.Contains(a.Error, "may not send pings"):
		c.Result = check.Skipped
	case q.expect == answer:
		if !a.Answered || len(q.by) > 0 && a.From != "" && !slices.Contains(q.by, a.From) {
			c.Result = check.Failed
		}
	case q.expect == refusal:
		q.judgeRefusal(&c, a)
	case q.control != "" && !reached[q.control]:
		c.Result, c.Evidence = check.Skipped, "it is not reached inside of its own cluster either"
	case !a.Answered, a.From != "" && !strings.HasPrefix(a.From, q.peer):
	case a.From != "" && !from.knows(a.Source):
		c.Evidence = fmt.Sprintf("it was reached beside the peering, from %s", a.Source)
	default:
		c.Result = check.Failed
	}
	return c
}

func (q Question) judgeRefusal(c *check.Finding, a probe.Answer) {
	r := a.Refusal
	switch {
	case r != nil && r.Type == 0 && r.MTU > 0 && r.MTU <= q.mtu:
		c.Result, c.Evidence = check.Skipped, fmt.Sprintf("the pod's own interface carries no more than %d bytes", r.MTU)
	case r == nil || r.Type != unreachable || r.Code != fragmentationNeeded || r.MTU != q.mtu:
		c.Result = check.Failed
		c.Evidence += fmt.Sprintf(", and not an ICMP error with the MTU %d", q.mtu)
	}
}

// sent says in words what was sent.
func sent(c probe.Call, a probe.Answer) string {
	protocol := strings.ToUpper(string(c.Protocol))
	to := c.To.String()
	if c.Protocol == probe.ICMP {
		protocol, to = "a ping", c.To.Addr().String()
	}
	size := cmp.Or(a.Size, c.Size)
	what := protocol + " to " + to
	switch {
	case size == 0:
		return what
	case c.DontFragment:
		return fmt.Sprintf("%d bytes in one piece by %s", size, what)
	case c.Protocol == probe.UDP:
		return fmt.Sprintf("%d bytes in fragments by %s", size, what)
	}
	return fmt.Sprintf("%d bytes by %s", size, what)
}

// got says in words what came back.
func got(a probe.Answer, names map[string]string) string {
	r := a.Refusal
	switch {
	case a.Answered && a.From == "":
		return "an answer"
	case a.Answered:
		return fmt.Sprintf("an answer of %s, which has seen %s", cmp.Or(names[a.From], "another probe"), a.Source)
	case r != nil && r.Type == 0 && r.MTU > 0:
		return fmt.Sprintf("refused by the own kernel, MTU %d", r.MTU)
	case r != nil && r.MTU > 0:
		return fmt.Sprintf("an ICMP error of %s, MTU %d", r.From, r.MTU)
	case r != nil && r.Type != 0:
		return fmt.Sprintf("an ICMP error of %s, type %d code %d", r.From, r.Type, r.Code)
	case a.Tries > 1:
		return fmt.Sprintf("%s, sent %d times", a.Error, a.Tries)
	}
	return a.Error
}

// encrypted is about what left the nodes of a side.
func encrypted(s *Side, nodes []Watched) (out []check.Finding) {
	for _, w := range nodes {
		if w.Plane != nil {
			continue
		}
		c := check.Finding{From: "node " + w.Node, Result: check.Passed, Evidence: fmt.Sprintf("%d packets to the peer and %d from it by the overlay, none unencrypted", w.ToPeer, w.FromPeer)}
		if w.Gateway {
			c.Evidence += fmt.Sprintf("; encrypted %d bytes out, %d in", w.TunnelOut, w.TunnelIn)
		}
		switch {
		case w.Error != nil:
			c.Result, c.Evidence = check.Skipped, "nothing was counted: "+w.Error.Error()
		case w.Plain > 0:
			c.Result, c.Evidence = check.Failed, fmt.Sprintf("%d packets of the peer's ranges (%s) left it by another interface than the overlay's", w.Plain, strings.Trim(strings.ReplaceAll(fmt.Sprint(s.Remote), " ", ", "), "[]"))
		case w.ToPeer == 0 && s.asksFrom(w.Node):
			c.Result, c.Evidence = check.Skipped, "no packet to the peer was seen: its network plugin passes them beside nftables, or none was sent"
		case w.Gateway && w.TunnelOut+w.TunnelIn == 0:
			c.Result, c.Evidence = check.Skipped, "no packet of the tunnel was seen: its network plugin passes them beside nftables, or none was sent"
		}
		out = append(out, c)
	}
	return out
}

// asksFrom says that probes on a node were to ask the peer.
func (s *Side) asksFrom(node string) bool {
	return slices.ContainsFunc(s.Nodes, func(n Node) bool { return n.Name == node && (n.Pod.IsValid() || n.HostError == nil) })
}

// provoked are the reasons for which the probes of isolation are dropped, and what kernels send by themselves.
func provoked() []string {
	return []string{"to-node", "not-reachable", "new-connection", "to-gateway", "not-allowed", "ipv6"}
}

// drops is about what nodes and gateways have dropped while the probes asked. Others send, too: what is dropped of that is no fault of the peering.
// Where something was lost, it may be the reason.
func drops(nodes []Watched, lost bool) (out []check.Finding) {
	for _, w := range nodes {
		c := check.Finding{From: "node " + w.Node, Result: check.Passed, Evidence: "nothing was dropped"}
		if w.Plane != nil {
			c.From = fmt.Sprintf("gateway of plane %d", *w.Plane)
		}
		var others, all []string
		for _, name := range slices.Sorted(maps.Keys(w.Dropped)) {
			said := fmt.Sprintf("%s %d", name, w.Dropped[name])
			all = append(all, said)
			if !slices.ContainsFunc(provoked(), func(reason string) bool { return strings.Contains(name, "/"+reason) }) {
				others = append(others, said)
			}
		}
		switch {
		case w.Error != nil:
			c.Result, c.Evidence = check.Skipped, "nothing was counted: "+w.Error.Error()
		case len(others) > 0 && lost:
			c.Result, c.Evidence = check.Failed, "meanwhile it has dropped: "+strings.Join(others, ", ")
		case len(all) > 0:
			c.Evidence = "dropped were " + strings.Join(all, ", ")
		}
		out = append(out, c)
	}
	return out
}

// conclude says what all attempts of a check come to.
func conclude(c check.Check, from, to *Side, found []check.Finding) check.Check {
	c.From, c.To, c.Findings, c.Result = from.Cluster, to.Cluster, found, check.Skipped
	if c.Count(check.Passed) > 0 {
		c.Result = check.Passed
	}
	hint := strings.NewReplacer("{kubectl}", from.Kubectl, "{there}", to.Kubectl, "{from}", from.Cluster, "{to}", to.Cluster, "{peering}", from.Peering).Replace(c.Hint)
	c.Hint = ""
	if c.Count(check.Failed) > 0 {
		c.Result, c.Hint = check.Failed, hint
	}
	if i := slices.IndexFunc(found, func(f check.Finding) bool { return f.Result == check.Skipped }); i >= 0 {
		c.Message = found[i].From + ": " + found[i].Evidence
	} else if len(found) == 0 {
		c.Message = whyNone(c.Name, from, to)
	}
	return c
}

// whyNone says why there is nothing to try for a check.
func whyNone(name string, from, to *Side) string {
	switch {
	case name == IsolatedThird && len(to.Third) == 0:
		return "the cluster that is called is peered with nobody else"
	case (name == ServiceClusterIP || name == ServiceNodePort) && from.Abroad.Error != nil:
		return "the service could not be made: " + from.Abroad.Error.Error()
	case (name == IsolatedNodePorts || name == IsolatedServices) && to.Own.Error != nil:
		return fmt.Sprintf("the service in %s could not be made: %s", to.Cluster, to.Own.Error.Error())
	case name == IsolatedAPI && len(to.APIServers) == 0:
		return "its address is not known"
	}
	for _, n := range slices.Concat(from.Nodes, to.Nodes) {
		if n.PodError != nil {
			return n.PodError.Error()
		}
	}
	return "there is nothing to try"
}
