package cli

import (
	"bytes"
	"testing"

	"github.com/liqonet/liqonet/pkg/verify"
)

// reportOf is one of which something failed, and something was skipped.
func reportOf() *verify.Report {
	check := func(name verify.Name, what string, result verify.Result, cases ...verify.Case) []verify.Check {
		c := verify.Check{Name: name, What: what, From: "cluster-a", To: "cluster-b", Result: result, Cases: cases}
		back := verify.Check{Name: name, What: what, From: "cluster-b", To: "cluster-a", Result: verify.Passed, Cases: []verify.Case{{From: "pod 10.244.1.7 on b-w1", Got: "an answer", Result: verify.Passed}}}
		switch result {
		case verify.Failed:
			c.Hint = "kubectl liqonet status cluster-a cluster-b -o wide"
		case verify.Skipped:
			c.Message, back.Message, back.Result, back.Cases = "it is peered with nobody else", "it is peered with nobody else", verify.Skipped, nil
		}
		return []verify.Check{c, back}
	}
	failed := verify.Case{
		From: "pod 10.244.1.7 on a-w1", To: "10.244.0.9, a pod on b-w2", Sent: "1440 bytes in one piece by UDP to 10.62.0.9:5701",
		Got: "no answer, sent 13 times", Result: verify.Failed,
	}
	ok := verify.Case{From: "pod 10.244.0.8 on a-w2", Got: "an answer", Result: verify.Passed}
	r := &verify.Report{Clusters: []string{"cluster-a", "cluster-b"}, Seconds: 12.34, Notes: []string{"cluster-a: there is one node only, so none without a gateway is tried"}}
	r.Checks = append(r.Checks, check(verify.PodsTCP, "pod to pod, TCP", verify.Passed, ok, ok)...)
	r.Checks = append(r.Checks, check(verify.PodsMTU, "full packets in one piece", verify.Failed, failed, ok, failed, failed, failed)...)
	r.Checks = append(r.Checks, check(verify.IsolatedThird, "no way to third clusters", verify.Skipped)...)
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
					{What: "throughput", Unit: "Mbit/s", From: "a-w1", To: "b-w2", Tunnel: &tunnel, Bare: &bare, Ratio: &ratio},
					{What: "latency-p50", Unit: "us", From: "a-w1", To: "b-w2", Tunnel: &tunnel},
				}
			}
			var out bytes.Buffer
			if err := (&output{format: format, own: []string{"junit"}}).printReport(&out, r); err != nil {
				t.Fatal(err)
			}
			file := map[string]string{"table": "verify.txt", "wide": "verify-wide.txt", "name": "verify-name.txt", "json": "verify.json", "yaml": "verify.yaml", "junit": "verify.xml"}[format]
			if file == "" {
				file = "verify-columns.txt"
			}
			golden(t, file, out.String())
		})
	}
}

// On a terminal of 80 columns no line is longer.
func TestReportFitsTerminal(t *testing.T) {
	var out bytes.Buffer
	w := newPage(&out, nil)
	w.width = 80
	if err := (&output{format: "table"}).printReport(w, reportOf()); err != nil {
		t.Fatal(err)
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	golden(t, "verify-80.txt", out.String())
	for line := range bytes.Lines(out.Bytes()) {
		if n := len([]rune(string(bytes.TrimSpace(line)))); n > 80 && !copied.Match(bytes.TrimRight(line, "\n")) {
			t.Errorf("a line of %d characters: %s", n, line)
		}
	}
}

// What clusters answer begins no line of its own, nor an element.
func TestHostileReport(t *testing.T) {
	for _, format := range []string{"table", "wide", "junit"} {
		r := reportOf()
		r.Checks[2].Cases[0].Got = "evil\x1b[31m</failure>\nOf 1 checks 1 passed"
		var out bytes.Buffer
		if err := (&output{format: format, own: []string{"junit"}}).printReport(&out, r); err != nil {
			t.Fatal(err)
		}
		for _, bad := range []string{"\x1b", "evil</failure>", "\nOf 1 checks"} {
			if bytes.Contains(out.Bytes(), []byte(bad)) {
				t.Errorf("%s has %q:\n%s", format, bad, out.String())
			}
		}
	}
}
