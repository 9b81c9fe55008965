package output

import (
	"bytes"
	"cmp"
	"fmt"
	"testing"
)

func TestOutput(t *testing.T) {
	for _, format := range []string{"table", "wide", "name", "json", "yaml", "jsonpath={.peerings[*].state}", "go-template={{.kind}}"} {
		o := &Format{}
		if err := o.Set(format); err != nil || o.String() != format {
			t.Errorf("%s: got %q, %v", format, o, err)
		}
	}
	for _, format := range []string{"xml", "jsonpath=", "jsonpath={.x", "go-template={{"} {
		if err := (&Format{}).Set(format); err == nil {
			t.Errorf("%q is no format", format)
		}
	}
}

// The last format takes precedence, and a document does not depend on earlier ones.
func TestOutputIsPrintedAgain(t *testing.T) {
	o := &Format{}
	if err := cmp.Or(o.Set("custom-columns=PEER:.peer"), o.Set("yaml")); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		var out bytes.Buffer
		err := o.Print(&out, "Test", map[string]int{"a": 1}, nil, nil)
		if want := "a: 1\napiVersion: cli.liqonet.io/v1alpha1\nkind: Test\n"; err != nil || out.String() != want {
			t.Errorf("got %q, %v", out.String(), err)
		}
	}
}

func TestColumns(t *testing.T) {
	for _, format := range []string{"custom-columns=", "custom-columns=A", "custom-columns=A:", "custom-columns=A:.x[", "custom-columns=A:.x,"} {
		if err := (&Format{}).Set(format); err == nil {
			t.Errorf("%s is taken", format)
		}
	}
}

// Lines are broken between words, but never within a command.
func TestWrap(t *testing.T) {
	for _, tt := range []struct{ in, want string }{
		{"short\n", "short\n"},
		{"one two three four five six\n", "one two three four\n  five six\n"},
		{"  one two three four five\n", "  one two three four\n    five\n"},
		{"see (kubectl get pods -n liqonet-system), please\n", "see\n  (kubectl get pods -n liqonet-system),\n  please\n"},
		{"no end of line, and long", "no end of line, and\n  long"},
		{"averyveryverylongwordthatdoesnotfit\n", "averyveryverylongwordthatdoesnotfit\n"},
	} {
		if got := Wrap(tt.in, 20); got != tt.want {
			t.Errorf("%q: got %q, want %q", tt.in, got, tt.want)
		}
		if got := Wrap(tt.in, 0); got != tt.in {
			t.Errorf("not to a terminal: %q", got)
		}
	}
}

// The longest cells are shortened in the middle, and sentences continue below, no more than necessary.
func TestFit(t *testing.T) {
	head := []string{"CLUSTER", "STATE"}
	const long = "arn:aws:eks:eu-central-1:123456789012:cluster/one"
	for _, tt := range []struct {
		columns int
		rows    [][]string
		want    string
	}{
		{32, [][]string{{long, "Connected"}, {"short", "Degraded"}}, "[[arn:aws:ek…uster/one Connected] [short Degraded]]"},
		{0, [][]string{{long, "Connected"}}, "[[" + long + " Connected]]"},
		{5, [][]string{{"cluster-a", "Connected"}}, "[[cluster-a Connected]]"},
		{40, [][]string{{"cluster-a", "packets pass from all nodes by both planes"}}, "[[cluster-a packets pass from all nodes] [ by both planes]]"},
		{40, [][]string{{"a-cluster-of-long-name", "packets pass from all nodes by both planes"}}, "[[a-cl…name packets pass from all nodes] [ by both planes]]"},
	} {
		if got := fmt.Sprint(fit(head, tt.rows, tt.columns)); got != tt.want {
			t.Errorf("%d columns: got %s, want %s", tt.columns, got, tt.want)
		}
	}
}
