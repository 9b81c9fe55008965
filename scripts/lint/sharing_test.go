package main

import (
	"fmt"
	"go/token"
	"strings"
	"testing"
)

// sharedIn returns what the check finds in a made-up package of this name.
func sharedIn(t *testing.T, name, source string) string {
	t.Helper()
	fset, imports := token.NewFileSet(), imported{}
	check := func(path, source string) *shape {
		s, err := newShape(fset, imports, "m", path, map[string]string{"x.go": source})
		if err != nil {
			t.Fatal(err)
		}
		imports[path] = s.types
		return s
	}
	check("sync", "package sync\n\ntype Mutex struct{ state int32 }\n\nfunc (*Mutex) Lock() {}")
	check("sync/atomic", "package atomic\n\ntype Bool struct{ v uint32 }\n\nfunc (*Bool) Load() bool { return true }\n\ntype Pointer[T any] struct{ p *T }")
	check("time", "package time\n\ntype Time struct{ at *int }")
	check("context", "package context\n\ntype Context interface{ Done() }")
	check("m/inner", `package inner

import "sync"

type Locked struct{ mu sync.Mutex }

type Far struct{ next map[string][]*Locked }

type Client interface{ Get() }

type Lease struct{ Client Client }

type Object struct {
	Name  string
	Other *Object
}

func (o *Object) Set() { o.Name = "" }
`)
	var got []string
	for _, f := range check("m/"+name, "package gateway\n\nimport (\n\t\"context\"\n\t\"m/inner\"\n\t\"sync\"\n\t\"sync/atomic\"\n\t\"time\"\n)\n\n"+
		"var _ context.Context\nvar _ time.Time\nvar _ inner.Far\nvar _ sync.Mutex\nvar _ atomic.Bool\n"+source).check() {
		got = append(got, f.text)
	}
	return strings.NewReplacer("m/agent/gateway.", "", " in agent/gateway: held by", ":", "agent/gateway.", "").Replace(strings.Join(got, "\n"))
}

func TestSharing(t *testing.T) {
	const (
		locked, state, outside, function = "shared m/inner.Locked: a, b", "shared st: a, b", "lock a.l: touched outside of its methods",
			": it may hold the state of other parts"
	)
	for when, tt := range map[string]struct{ a, b, more, want string }{
		"each has its own":         {"l inner.Locked", "l inner.Locked", "", ""},
		"values":                   {"n int; s [2]string; t time.Time; c chan int", "n int; s [2]string; t time.Time; c chan int", "", ""},
		"errors and contexts":      {"e error; c context.Context", "e error; c context.Context", "", ""},
		"one pointer":              {"l *inner.Locked", "n int", "", ""},
		"two pointers":             {"l *inner.Locked", "l *inner.Locked", "", locked},
		"two pointers in one":      {"l, k *inner.Locked", "", "", ""},
		"a pointer to the other":   {"l inner.Locked", "l *inner.Locked", "", locked},
		"an atomic pointer":        {"l atomic.Pointer[inner.Locked]", "l *inner.Locked", "", locked},
		"a pointer to an atomic":   {"p atomic.Pointer[int]", "p *atomic.Pointer[int]", "", "shared sync/atomic.Pointer[int]: a, b"},
		"mutexes":                  {"l *sync.Mutex", "l sync.Mutex", "", "shared sync.Mutex: a, b"},
		"atomics":                  {"l *atomic.Bool", "l *atomic.Bool", "", "shared sync/atomic.Bool: a, b"},
		"in a list of maps":        {"l []map[int]*inner.Locked", "l [2]*inner.Locked", "", locked},
		"as keys":                  {"m map[*inner.Locked]bool", "l *inner.Locked", "", locked},
		"under another name":       {"l *inner.Locked", "l *st", "type st inner.Locked", locked},
		"inside of the other":      {"w *st", "l *inner.Locked", "type st struct { l inner.Locked }", "shared m/inner.Locked: b, st"},
		"a lock further away":      {"l *inner.Far", "l *inner.Far", "", "shared m/inner.Far: a, b"},
		"a value that leads to it": {"l inner.Far", "l *inner.Locked", "", locked},
		"another package's struct": {"o *inner.Object", "o *inner.Object", "", "shared m/inner.Object: a, b"},
		"an interface":             {"c inner.Client", "l inner.Lease", "", "shared m/inner.Client: a, b"},
		"any":                      {"v any", "l inner.Locked", "", "shared any: a, b"},
		"interface and struct":     {"l sync.Mutex", "l locker", "type locker interface { Lock() }", "shared locker: a, b"},
		"two interfaces":           {"c inner.Client", "c getter", "type getter interface { Get() }", "shared m/inner.Client: a, b"},
		"pointers to basic types":  {"n *int", "n int", "", "shared int: a, b"},
		"pointers to arrays":       {"n *[4]int", "n *[4]int", "", "shared [4]int: a, b"},
		"pointers to maps":         {"m *map[string]int", "m *map[string]int", "", "shared map[string]int: a, b"},
		"maps":                     {"m map[string]int", "m st", "type st map[string]int", "shared map[string]int: a, b"},
		"slices":                   {"s []int", "s []int", "", "shared []int: a, b"},
		"channels of pointers":     {"c chan *st", "c chan *st", "type st struct { n int }", state},
		"functions":                {"f func()", "f st", "type st func()", "function a.f" + function + "\nfunction b.f" + function},
		"a struct that one writes": {"s *st", "s *st", "type st struct { n int }\nfunc (x *a) set() { x.s.n++ }", state},
		"the same, held by value":  {"s st", "s *st", "type st struct { n int }\nfunc (x *a) set() { x.s.n++ }", state},
		"generic ones":             {"s *st[int]", "s *st[int]", "type st[T any] struct { n T }", "shared st[int]: a, b"},
		"in a function":            {"", "", "type st struct{}\nfunc f() {\ntype a struct { s *st }\ntype b struct { s *st }\n}", state},
		"copies":                   {"s st", "s st", "type st struct { l *inner.Locked }", locked},
		"copies further away":      {"s st", "s st", "type st struct { s in }\ntype in struct { l *inner.Locked }", locked},
		"copies of generic ones":   {"s st[inner.Locked]", "s []st[inner.Locked]", "type st[T any] struct { p *T }", locked},
		"copies of a part":         {"s *st", "", "type b1 struct { a a }\ntype b2 struct { a a }\ntype st struct{}", "shared st: b1, b2"},
		"a part of another":        {"l *inner.Locked", "a a", "", ""},
		"another part":             {"l sync.Mutex", "a *a", "type c struct { a a }", "shared a: b, c"},
		"a part that holds itself": {"next *a; all []a; l sync.Mutex", "", "", ""},
		"a message":                {"m []int", "", "type status struct { m []int }", "message status: its fields are not checked"},
		"a message that is held":   {"m []int", "s *status", "type status struct { m []int }", "shared []int: a, status"},
		"a variable":               {"", "", "var table = [2]int{1, 2}", "variable table: all parts can change it"},
		"an error in a variable":   {"", "", "var err error", ""},
		"a lock and its methods":   {"l sync.Mutex", "", "func (x *a) f() { func() { x.l.Lock() }() }", ""},
		"a lock in a function":     {"l sync.Mutex", "", "func f(x *a) { x.l.Lock() }", outside},
		"an atomic of a part":      {"l atomic.Bool", "a a", "func (x *b) f() { x.a.l.Load() }", outside},
		"the address of a lock":    {"l sync.Mutex", "", "func f(x *a) { _ = &x.l }", outside},
		"a method of a part":       {"l atomic.Bool", "a a", "func (x *a) is() bool { return x.l.Load() }\nfunc (x *b) f() { x.a.is() }", ""},
	} {
		source := fmt.Sprintf("type a struct { %s }\ntype b struct { %s }\n%s", tt.a, tt.b, tt.more)
		if got := sharedIn(t, "agent/gateway", source); got != tt.want {
			t.Errorf("%s: want %q, got %q", when, tt.want, got)
		}
	}
	if got := sharedIn(t, "agent/other", "type a struct { l *inner.Locked }\ntype b struct { l *inner.Locked }"); got != "" {
		t.Errorf("another package is checked: %s", got)
	}
}
