package attack_test

import (
	"cmp"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/samber/lo"

	"github.com/liqonet/liqonet/test/dataplane"
	"github.com/liqonet/liqonet/test/kit"
)

// patience is how long an attempt is repeated that has to succeed.
const patience = 10 * time.Second

// attack is something that an attacker tries.
type attack struct {
	attacker, name string
	// defence is what keeps it out.
	defence *defence
	// attempt says whether it got through.
	attempt func(t *testing.T) bool
}

// defence can be taken away, and put back.
type defence struct {
	name            string
	remove, restore func(t *testing.T)
	// parts are several, of which each alone keeps the attack out.
	parts []*defence
}

// all are several defences of which each alone keeps an attack out.
func all(parts ...*defence) *defence {
	return &defence{
		parts: parts,
		name:  strings.Join(lo.Map(parts, func(d *defence, _ int) string { return d.name }), " + "),
		remove: func(t *testing.T) {
			for _, d := range parts {
				d.remove(t)
			}
		},
		restore: func(t *testing.T) {
			for _, d := range parts {
				d.restore(t)
			}
		},
	}
}

// outcome is what a cell of the table says.
type outcome string

const (
	notTried outcome = "not tried"
	nothing  outcome = "nothing"
	through  outcome = "GETS THROUGH"
	succeeds outcome = "succeeds"
	failsToo outcome = "FAILS TOO"
)

// row is a line of the table.
type row struct {
	*attack
	with, without outcome
}

// table has a row for each attack of this run, by the test.
var (
	table   = map[string][]*row{}
	tableMu sync.Mutex
)

// run tries all attacks in parallel, because most wait for what does not come, and then each without what keeps it out.
func run(t *testing.T, attacks []attack) {
	rows := make([]*row, len(attacks))
	var defences []*defence
	for i := range attacks {
		rows[i] = &row{&attacks[i], notTried, notTried}
		if !slices.Contains(defences, attacks[i].defence) {
			defences = append(defences, attacks[i].defence)
		}
	}
	tableMu.Lock()
	table[t.Name()] = rows
	tableMu.Unlock()
	t.Run("with the product", func(t *testing.T) {
		for _, r := range rows {
			t.Run(r.attacker+": "+r.name, func(t *testing.T) {
				t.Parallel()
				if r.with = nothing; r.attempt(t) {
					r.with = through
					t.Error("it gets through")
				}
			})
		}
	})
	for _, d := range defences {
		of := slices.DeleteFunc(slices.Clone(rows), func(r *row) bool { return r.defence != d })
		t.Run("without "+d.name, func(t *testing.T) {
			d.remove(t)
			defer d.restore(t)
			for _, r := range of {
				t.Run(r.attacker+": "+r.name, func(t *testing.T) {
					r.without = failsToo
					for end := time.Now().Add(patience); time.Now().Before(end); {
						if r.attempt(t) {
							r.without = succeeds
							return
						}
					}
					t.Error("it fails as well: that it fails with the product proves nothing")
				})
			}
		})
		if kit.Full() {
			each(t, d, of)
		}
	}
}

// each tries attacks with a single one of several defences.
func each(t *testing.T, d *defence, rows []*row) {
	for i, left := range d.parts {
		t.Run("with nothing but "+left.name, func(t *testing.T) {
			others := all(slices.Delete(slices.Clone(d.parts), i, i+1)...)
			others.remove(t)
			defer others.restore(t)
			for _, r := range rows {
				t.Run(r.attacker+": "+r.name, func(t *testing.T) {
					if r.attempt(t) {
						r.with = through
						t.Error("it gets through: this alone is no defence")
					}
				})
			}
		})
	}
}

func TestMain(m *testing.M) {
	dataplane.ChildMain()
	flag.Parse()
	// Attempts wait for what does not come, and not for the processor.
	if err := flag.Set("test.parallel", "64"); err != nil {
		panic(err)
	}
	code := m.Run()
	printTable()
	os.Exit(code)
}

// printTable prints what came of all attacks. It is not a test's output, so that it is
// shown also where tests succeed.
func printTable() {
	if len(table) == 0 {
		return
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\nATTACKER\tATTEMPT\tGETS THROUGH\tWITHOUT THE DEFENCE")
	good, rows := 0, slices.Concat(slices.Collect(maps.Values(table))...)
	slices.SortStableFunc(rows, func(a, b *row) int { return cmp.Compare(a.attacker, b.attacker) })
	for _, r := range rows {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s: %s\n", r.attacker, r.name, r.with, r.without, r.defence.name)
		if r.with == nothing && r.without == succeeds {
			good++
		}
	}
	_ = w.Flush()
	fmt.Printf("%d of %d: nothing gets through, and the same attempt succeeds without the defence\n", good, len(rows))
}
