package main

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"maps"
	"slices"
	"strings"
)

// sharesNothing are the packages whose structs are parts of one program that share only channels and values that do not
// change. A reader of such a part needs no other one to know when its state changes.
var sharesNothing = []string{"agent/gateway"}

// values are types that do not change, although they contain pointers or are interfaces.
var values = []string{"error", "context.Context", "time.Time", "net/netip.Addr", "net/netip.AddrPort", "net/netip.Prefix"}

// sharing finds state that several structs of a package can reach. Two structs may hold the same values: numbers,
// strings, addresses, times, and structs, arrays and channels of these. Pointers, maps, slices and interfaces belong to
// one struct: another one must not hold the same type of them, whether or not somebody changes what is behind it. A
// function may hold anything, so it is always refused. shapeExceptions lists what is shared and never changes, and the
// messages: structs that no other one holds, which pass from one part to another and do not change.
//
// The check compares types, not instances. It does not see the following, for which tests use the race detector:
//   - what functions hold and pass: variables, arguments, results, closures, method values
//   - fields without a lock that a function of another struct reads or writes
//   - what is behind the pointers of other packages' types
//   - errors and contexts that change
type sharing struct {
	*shape
	// owners maps the fields of the package's structs to these.
	owners map[types.Object]string
	// embedders are the structs that hold values of a named type.
	embedders map[*types.TypeName]map[*types.TypeName]bool
	// states are the types that structs hold, by what is below their names: pointers to two types may be converted to
	// each other if they differ only in the name.
	states map[string]*state
}

// state is a type that structs hold, with the first field of each. It is referred to if not all hold it by value.
type state struct {
	t        types.Type
	holders  map[string]token.Pos
	referred bool
}

// checkSharing checks that no two structs hold the same mutable state, that only the methods of a struct touch the
// locks in it, and that the package has no variables except errors and regular expressions.
func (s *shape) checkSharing() {
	if !slices.Contains(sharesNothing, s.name) {
		return
	}
	h := sharing{s, map[types.Object]string{}, map[*types.TypeName]map[*types.TypeName]bool{}, map[string]*state{}}
	var structs []*types.TypeName
	for id, obj := range s.info.Defs {
		switch obj := obj.(type) {
		case *types.TypeName:
			if t, isStruct := obj.Type().Underlying().(*types.Struct); isStruct && !obj.IsAlias() {
				structs = append(structs, obj)
				for f := range t.Fields() {
					h.owners[f] = obj.Name()
					h.embed(obj, f.Type())
				}
			}
		case *types.Var:
			if obj.Parent() == s.types.Scope() && obj.Type().String() != "error" && obj.Type().String() != "*regexp.Regexp" {
				s.add(id.Pos(), fmt.Sprintf("variable %s.%s: all parts can change it", s.name, obj.Name()))
			}
		}
	}
	slices.SortFunc(structs, func(a, b *types.TypeName) int {
		return cmp.Or(strings.Compare(h.message(a), h.message(b)), cmp.Compare(a.Pos(), b.Pos())) // messages are last
	})
	for _, obj := range structs {
		if h.message(obj) != "" && h.states[obj.Type().Underlying().String()] == nil {
			h.add(obj.Pos(), h.message(obj)+": its fields are not checked")
			continue
		}
		for f := range obj.Type().Underlying().(*types.Struct).Fields() {
			if h.isPart(obj.Type()) {
				h.hold(obj.Name(), f, f.Type(), map[types.Type]bool{})
			}
		}
	}
	h.report()
	h.checkLocks()
}

// message returns the name of a struct's exception as a message, empty if it has none.
func (h sharing) message(obj *types.TypeName) string {
	name := "message " + h.name + "." + obj.Name()
	if _, excepted := shapeExceptions[name]; excepted {
		return name
	}
	return ""
}

// embed records that a struct holds values of a type.
func (h sharing) embed(holder *types.TypeName, t types.Type) {
	if named, isNamed := types.Unalias(t).(*types.Named); isNamed {
		by := h.embedders[named.Obj()]
		if by[holder] {
			return
		}
		if by == nil {
			by = map[*types.TypeName]bool{}
			h.embedders[named.Obj()] = by
		}
		by[holder] = true
		if h.isStruct(t) {
			return // it is a holder itself
		}
	}
	for _, in := range contents(t) {
		h.embed(holder, in)
	}
}

// isStruct reports whether a type is a struct of the package, and not generic.
func (h sharing) isStruct(t types.Type) bool {
	named, isNamed := types.Unalias(t).(*types.Named)
	_, isStruct := t.Underlying().(*types.Struct)
	return isNamed && isStruct && named.Obj().Pkg() == h.types && named.TypeParams().Len() == 0
}

// contents returns the types of which a value of a type consists, without what is behind pointers. An atomic.Pointer has a
// field for it that is an array of no pointers.
func contents(t types.Type) (out []types.Type) {
	switch u := t.Underlying().(type) {
	case *types.Struct:
		for f := range u.Fields() {
			out = append(out, f.Type())
		}
	case *types.Map:
		out = append(out, u.Key(), u.Elem())
	case *types.Array, *types.Slice, *types.Chan:
		out = append(out, u.(interface{ Elem() types.Type }).Elem())
	}
	return out
}

// isPart reports whether a type is a struct to which its fields belong. If several structs hold values of it, or of a
// struct that holds it, these are copies, and the fields belong to all of them.
func (h sharing) isPart(t types.Type) bool {
	if !h.isStruct(t) {
		return false
	}
	obj := t.(*types.Named).Obj()
	for seen := map[*types.TypeName]bool{}; !seen[obj]; {
		seen[obj] = true
		if len(h.embedders[obj]) > 1 {
			return false
		}
		for by := range h.embedders[obj] {
			obj = by
		}
	}
	return true
}

// hold records what a part holds in a field, of which t is the type or what is in it.
func (h sharing) hold(part string, field *types.Var, t types.Type, seen map[types.Type]bool) {
	t = types.Unalias(t)
	if seen[t] {
		return
	}
	seen[t] = true
	switch u := t.Underlying().(type) {
	case *types.Signature:
		if t.String() != "context.CancelFunc" {
			h.add(field.Pos(), fmt.Sprintf("function %s.%s.%s: it may hold the state of other parts", h.name, part, field.Name()))
		}
		return
	case *types.Pointer:
		to := types.Unalias(u.Elem())
		h.record(part, field, to, true)
		if named, isNamed := to.(*types.Named); !isNamed || named.Obj().Pkg() == h.types {
			h.hold(part, field, to, seen)
		}
		return
	case *types.Interface:
		h.record(part, field, t, !slices.Contains(values, t.String()))
	case *types.Map, *types.Slice:
		h.record(part, field, t, true)
	case *types.Basic, *types.Array, *types.Struct:
		h.record(part, field, t, false)
	}
	if slices.Contains(values, t.String()) || h.isPart(t) {
		return
	}
	for _, in := range contents(t) {
		h.hold(part, field, in, seen)
	}
}

func (h sharing) record(part string, field *types.Var, t types.Type, referred bool) {
	what := t.Underlying().String()
	if h.states[what] == nil {
		h.states[what] = &state{t, map[string]token.Pos{}, false}
	}
	s := h.states[what]
	s.referred = s.referred || referred
	if s.holders[part] == token.NoPos || field.Pos() < s.holders[part] {
		s.holders[part] = field.Pos()
	}
}

// report reports the states that several structs hold. One that holds an interface may hold all that implement it.
func (h sharing) report() {
	for _, s := range h.states {
		if !s.referred {
			continue
		}
		by := maps.Clone(s.holders)
		if i, isInterface := s.t.Underlying().(*types.Interface); isInterface {
			for _, other := range h.states {
				if types.Implements(other.t, i) || types.Implements(types.NewPointer(other.t), i) {
					maps.Copy(by, other.holders)
				}
			}
		}
		if names := slices.Sorted(maps.Keys(by)); len(names) > 1 {
			h.add(by[names[0]], fmt.Sprintf("shared %s in %s: held by %s", s.t, h.name, strings.Join(names, ", ")))
		}
	}
}

// isLock reports whether a type belongs to package sync or sync/atomic.
func isLock(t types.Type) bool {
	named, ok := types.Unalias(t).(*types.Named)
	return ok && named.Obj().Pkg() != nil && (named.Obj().Pkg().Path() == "sync" || named.Obj().Pkg().Path() == "sync/atomic")
}

// checkLocks finds locks that are touched outside of the methods of the struct that holds them.
func (h sharing) checkLocks() {
	for _, f := range h.files {
		for _, decl := range f.Decls {
			self := ""
			if fn, isFunc := decl.(*ast.FuncDecl); isFunc && fn.Recv != nil {
				self = receiver(fn.Recv)
			}
			ast.Inspect(decl, func(n ast.Node) bool {
				if sel, ok := n.(*ast.SelectorExpr); ok {
					field := h.info.Uses[sel.Sel]
					if owner := h.owners[field]; owner != "" && owner != self && isLock(field.Type()) {
						h.add(sel.Pos(), fmt.Sprintf("lock %s.%s.%s: touched outside of its methods", h.name, owner, field.Name()))
					}
				}
				return true
			})
		}
	}
}
