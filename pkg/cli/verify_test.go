package cli

import (
	"bytes"
	"testing"

	"github.com/liqonet/liqonet/pkg/check"
	"github.com/liqonet/liqonet/pkg/output"
	"github.com/liqonet/liqonet/pkg/verify"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/schema"
)

// reportOf returns a report with a failed check and a skipped one.
func reportOf() *verify.Report {
	both := func(name string, what string, result check.Result, cases ...check.Finding) []check.Check {
		c := check.Check{Name: name, Description: what, From: "cluster-a", To: "cluster-b", Result: result, Findings: cases}
		back := check.Check{Name: name, Description: what, From: "cluster-b", To: "cluster-a", Result: check.Passed, Findings: []check.Finding{{From: "pod 10.244.1.7 on b-w1", Evidence: "an answer", Result: check.Passed}}}
		switch result {
		case check.Failed:
			c.Hint = "kubectl liqonet status cluster-a cluster-b -o wide"
		case check.Skipped:
			c.Message, back.Message, back.Result, back.Findings = "it is peered with nobody else", "it is peered with nobody else", check.Skipped, nil
		}
		return []check.Check{c, back}
	}
	failed := check.Finding{
		From: "pod 10.244.1.7 on a-w1", To: "10.244.0.9, a pod on b-w2", Sent: "1440 bytes in one piece by UDP to 10.62.0.9:5701",
		Evidence: "no answer, sent 13 times", Result: check.Failed,
	}
	ok := check.Finding{From: "pod 10.244.0.8 on a-w2", Evidence: "an answer", Result: check.Passed}
	r := &verify.Report{Clusters: []string{"cluster-a", "cluster-b"}, Seconds: 12.34, Notes: []string{"cluster-a: there is only one node, so no node without a gateway is tested"}}
	r.Checks = append(r.Checks, both(verify.PodsTCP, "pod to pod, TCP", check.Passed, ok, ok)...)
	r.Checks = append(r.Checks, both(verify.PodsMTU, "full packets in one piece", check.Failed, failed, ok, failed, failed, failed)...)
	r.Checks = append(r.Checks, both(verify.IsolatedOtherPeers, "third clusters unreachable", check.Skipped)...)
	r.Conclude()
	return r
}

func TestPrintReport(t *testing.T) {
	for _, format := range []string{"table", "wide", "name", "json", "yaml", "junit", "custom-columns=CHECK:.name,RESULT:.result"} {
		t.Run(format, func(t *testing.T) {
			r := reportOf()
			if format == "table" {
				tunnel, bare, ratio := 639.4, 7317.0, 0.087
				r.Bench = []verify.Speed{
					{What: "throughput", Unit: "Mbit/s", From: "a-w1", To: "b-w2", Tunnel: &tunnel, Direct: &bare, Ratio: &ratio},
					{What: "latency-p50", Unit: "us", From: "a-w1", To: "b-w2", Tunnel: &tunnel},
				}
			}
			var out bytes.Buffer
			kit.NoError(t, printVerification(outputOf(t, format, "junit"), &out, r))
			file := map[string]string{"table": "verify.txt", "wide": "verify-wide.txt", "name": "verify-name.txt", "json": "verify.json", "yaml": "verify.yaml", "junit": "verify.xml"}[format]
			if file == "" {
				file = "verify-columns.txt"
			}
			golden(t, file, out.String())
		})
	}
}

// In JUnit XML, doctor has a test case for each check, as verify does.
func TestDiagnosisAsJUnit(t *testing.T) {
	found := check.Finding{Result: check.Failed, Cluster: "a", Problem: "node n1 is not ready", Evidence: "KubeletDown: gone", Hint: "kubectl describe node n1"}
	d := &doctorDocument{Report: &check.Report{Checks: []check.Check{
		{Name: "liqonet-node-01", Description: "nodes are ready", Result: check.Failed, Findings: []check.Finding{found}},
		{Name: "liqonet-mtu-01", Description: "nodes in one subnet have the same MTU", Result: check.Skipped, Message: "--objects-only runs no pods"},
		{Name: "liqonet-clock-01", Description: "clocks agree", Result: check.Warning, Findings: []check.Finding{{Result: check.Warning, Problem: "an hour"}}},
	}}}
	var out bytes.Buffer
	kit.NoError(t, printDiagnosis(outputOf(t, "junit", "junit"), &out, d))
	golden(t, "doctor.xml", out.String())
}

// No line is longer than a terminal of 80 columns.
func TestReportFitsTerminal(t *testing.T) {
	var out bytes.Buffer
	w := output.NewPage(&out, nil)
	w.Width = 80
	kit.NoError(t, printVerification(outputOf(t, "table"), w, reportOf()))
	kit.NoError(t, w.Flush())
	golden(t, "verify-80.txt", out.String())
	for line := range bytes.Lines(out.Bytes()) {
		n := len([]rune(string(bytes.TrimSpace(line))))
		kit.ErrorIf(t, n > 80 && !copied.Match(bytes.TrimRight(line, "\n")), "a line of %d characters: %s", n, line)
	}
}

// Text from clusters cannot start a line or an XML element.
func TestHostileReport(t *testing.T) {
	for _, format := range []string{"table", "wide", "junit"} {
		r := reportOf()
		r.Checks[2].Findings[0].Evidence = "evil\x1b[31m</failure>\nOf 1 checks, 1 passed"
		r.Checks[2].Hint, r.Clusters[0] = "\u009b2J\u202e", "\x7f\u009d"
		var out bytes.Buffer
		kit.NoError(t, printVerification(outputOf(t, format, "junit"), &out, r))
		schema.NoControl(t, format, out.String())
		for _, bad := range []string{"evil</failure>", "\nOf 1 checks"} {
			kit.ErrorIf(t, bytes.Contains(out.Bytes(), []byte(bad)), "%s has %q:\n%s", format, bad, out.String())
		}
	}
}
