package main

import (
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
	check("sync", "package sync\n\ntype Mutex struct{}\n\nfunc (*Mutex) Lock() {}")
	check("sync/atomic", "package atomic\n\ntype Bool struct{}\n\nfunc (*Bool) Load() bool { return true }\n\ntype Pointer[T any] struct{ p *T }")
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
	for _, f := range check("m/"+name, "package gateway\n\nimport (\n\t\"context\"\n\t\"m/inner\"\n\t\"sync\"\n\t\"sync/atomic\"\n)\n\n"+
		"var _ context.Context\nvar _ inner.Far\nvar _ sync.Mutex\nvar _ atomic.Bool\n"+source).check() {
		got = append(got, f.text)
	}
	return strings.ReplaceAll(strings.Join(got, "\n"), "m/agent/gateway.", "")
}

func TestSharing(t *testing.T) {
	const in = "agent/gateway: "
	for when, tt := range map[string]struct{ source, want string }{
		"each has its own":         {"type a struct { l inner.Locked }\ntype b struct { l inner.Locked }", ""},
		"one pointer":              {"type a struct { l *inner.Locked }\ntype b struct { n int }", ""},
		"two pointers":             {"type a struct { l *inner.Locked }\ntype b struct { l *inner.Locked }", "shared m/inner.Locked in " + in + "held by a, b"},
		"two pointers in one":      {"type a struct { l, k *inner.Locked }", ""},
		"a pointer to the other":   {"type a struct { l inner.Locked }\ntype b struct { l *inner.Locked }", "shared m/inner.Locked in " + in + "held by a, b"},
		"an atomic pointer":        {"type a struct { l atomic.Pointer[inner.Locked] }\ntype b struct { l *inner.Locked }", "shared m/inner.Locked in " + in + "held by a, b"},
		"mutexes":                  {"type a struct { l *sync.Mutex }\ntype b struct { l sync.Mutex }", "shared sync.Mutex in " + in + "held by a, b"},
		"atomics":                  {"type a struct { l *atomic.Bool }\ntype b struct { l *atomic.Bool }", "shared sync/atomic.Bool in " + in + "held by a, b"},
		"in a list of maps":        {"type a struct { l []map[int]*inner.Locked }\ntype b struct { l [2]*inner.Locked }", "shared m/inner.Locked in " + in + "held by a, b"},
		"a lock further away":      {"type a struct { l *inner.Far }\ntype b struct { l *inner.Far }", "shared m/inner.Far in " + in + "held by a, b"},
		"an interface":             {"type a struct { c inner.Client }\ntype b struct { l inner.Lease }", "shared m/inner.Client in " + in + "held by a, b"},
		"values behind pointers":   {"type a struct { o *inner.Object }\ntype b struct { o *inner.Object }", ""},
		"errors and contexts":      {"type a struct { e error; c context.Context }\ntype b struct { e error; c context.Context }", ""},
		"channels and functions":   {"type a struct { c chan *inner.Locked; f func() }\ntype b struct { c chan *inner.Locked; f func() }", ""},
		"a part of another":        {"type a struct { l *inner.Locked }\ntype b struct { a a }", ""},
		"another part":             {"type a struct { l sync.Mutex }\ntype b struct { a *a }\ntype c struct { a a }", "shared a in " + in + "held by b, c"},
		"a part that changes":      {"type a struct { n []int }\nfunc (x *a) set() { x.n[0]++ }\ntype b struct { a *a }\ntype c struct { a *a }", "shared a in " + in + "held by b, c"},
		"copies of it":             {"type a struct { n int }\nfunc (x *a) set() { x.n = 1 }\ntype b struct { a *a }\ntype c struct { a a }", ""},
		"a part that stays":        {"type a struct { n int }\nfunc (x *a) get() (n int) { n = x.n; x = nil; return n }\ntype b struct { a *a }\ntype c struct { a *a }", ""},
		"a lock and its methods":   {"type a struct { l sync.Mutex }\nfunc (x *a) f() { func() { x.l.Lock() }() }", ""},
		"a lock in a function":     {"type a struct { l sync.Mutex }\nfunc f(x *a) { x.l.Lock() }", "lock agent/gateway.a.l: touched outside of its methods"},
		"an atomic of a part":      {"type a struct { l atomic.Bool }\ntype b struct { a a }\nfunc (x *b) f() { x.a.l.Load() }", "lock agent/gateway.a.l: touched outside of its methods"},
		"the address of a lock":    {"type a struct { l sync.Mutex }\nfunc f(x *a) { _ = &x.l }", "lock agent/gateway.a.l: touched outside of its methods"},
		"a method of a part":       {"type a struct { l atomic.Bool }\nfunc (x *a) is() bool { return x.l.Load() }\ntype b struct { a a }\nfunc (x *b) f() { x.a.is() }", ""},
		"a part that holds itself": {"type a struct { next *a; l sync.Mutex }", ""},
	} {
		if got := sharedIn(t, "agent/gateway", tt.source); got != tt.want {
			t.Errorf("%s: want %q, got %q", when, tt.want, got)
		}
	}
	if got := sharedIn(t, "agent/other", "type a struct { l *inner.Locked }\ntype b struct { l *inner.Locked }"); got != "" {
		t.Errorf("another package is checked: %s", got)
	}
}
