package cli

import (
	"encoding/xml"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/liqonet/liqonet/pkg/check"
)

// printReport prints for programs a document about checks, or the names of those that had one of these results. The suite is what JUnit's XML
// begins with.
func (o *output) printReport(w io.Writer, kind string, suite junitSuite, doc any, checks []check.Check, named ...check.Result) error {
	if o.format == "junit" {
		return suite.print(w, checks)
	}
	var names []string
	for _, c := range checks {
		if slices.Contains(named, c.Result) {
			names = append(names, c.Name)
		}
	}
	return o.print(w, kind, doc, checks, slices.Compact(names)) // some have two directions
}

// saidOf says where something was found, or who has sent what to whom.
func saidOf(f *check.Finding) string {
	if f.From == "" {
		return oneLine(f.Cluster + ": " + f.What)
	}
	out := oneLine(f.From)
	if f.Sent != "" {
		out += ", " + oneLine(f.Sent)
	}
	if f.To != "" {
		out += " (" + oneLine(f.To) + ")"
	}
	return out
}

// unknown are checks that were skipped for the same reason, and their clusters.
type unknown struct {
	why              string
	checks, clusters []string
}

func addUnknown(to []unknown, why, name, cluster string) []unknown {
	i := slices.IndexFunc(to, func(u unknown) bool { return u.why == why })
	if i < 0 {
		i, to = len(to), append(to, unknown{why: why})
	}
	if !slices.Contains(to[i].checks, name) {
		to[i].checks = append(to[i].checks, name)
	}
	if !slices.Contains(to[i].clusters, cluster) {
		to[i].clusters = append(to[i].clusters, cluster)
	}
	return to
}

// The following is what programs for continuous integration read as JUnit's XML. Nobody has defined it: these are the elements
// and attributes that all of them know.
type junitSuites struct {
	XMLName xml.Name     `xml:"testsuites"`
	Suites  []junitSuite `xml:"testsuite"`
}

type junitSuite struct {
	Name     string      `xml:"name,attr"`
	Tests    int         `xml:"tests,attr"`
	Failures int         `xml:"failures,attr"`
	Skipped  int         `xml:"skipped,attr"`
	Time     string      `xml:"time,attr,omitempty"`
	Cases    []junitCase `xml:"testcase"`
}

type junitCase struct {
	Class   string        `xml:"classname,attr"`
	Name    string        `xml:"name,attr"`
	Failure *junitOutcome `xml:"failure"`
	Skipped *junitOutcome `xml:"skipped"`
}

type junitOutcome struct {
	Message string `xml:"message,attr"`
	Text    string `xml:",chardata"`
}

// print prints a case for each check. The first word of the suite's name is the command.
func (s junitSuite) print(w io.Writer, checks []check.Check) error {
	s.Tests = len(checks)
	command, _, _ := strings.Cut(s.Name, " ")
	for _, c := range checks {
		one := junitCase{Class: command + "." + c.Name, Name: c.About}
		if c.From != "" {
			one.Name += fmt.Sprintf(": %s → %s", c.From, c.To)
		}
		switch c.Result {
		case check.Failed:
			s.Failures++
			one.Failure = &junitOutcome{Message: fmt.Sprintf("%d of %d failed", c.Count(check.Failed), len(c.Findings))}
			for i := range c.Findings {
				if f := &c.Findings[i]; f.Result == check.Failed {
					one.Failure.Text += fmt.Sprintf("%s: %s\n", saidOf(f), oneLine(f.Evidence+"\n"+f.Hint))
				}
			}
			one.Failure.Text += c.Hint + "\n"
		case check.Skipped:
			s.Skipped++
			one.Skipped = &junitOutcome{Message: c.Message}
		}
		s.Cases = append(s.Cases, one)
	}
	raw, err := xml.MarshalIndent(junitSuites{Suites: []junitSuite{s}}, "", "  ")
	if err == nil {
		_, err = io.WriteString(w, xml.Header+string(raw)+"\n")
	}
	return err
}
