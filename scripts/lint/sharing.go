package main

import (
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

// sharing finds mutable state that several structs of a package hold. It compares types, not instances: two structs with
// pointers to one type are taken for sharing.
//
// Out of scope: what functions hold in their variables, and slices and maps whose elements somebody changes.
type sharing struct {
	*shape
	// writers are the types of the package with a method that changes its receiver.
	writers map[types.Object]bool
	// owners maps the fields of the package's structs to these.
	owners map[types.Object]string
	// holders are the structs that hold state of a type, with the field, and referred those that hold it by reference.
	holders, referred map[string]map[string]token.Pos
}

// checkSharing checks that no two structs hold the same mutable state, and that only the methods of a struct touch the
// locks in it.
func (s *shape) checkSharing() {
	if !slices.Contains(sharesNothing, s.name) {
		return
	}
	h := sharing{s, map[types.Object]bool{}, map[types.Object]string{}, map[string]map[string]token.Pos{}, map[string]map[string]token.Pos{}}
	h.findWriters()
	for _, name := range s.types.Scope().Names() {
		obj, isType := s.types.Scope().Lookup(name).(*types.TypeName)
		if !isType {
			continue
		}
		if t, isStruct := obj.Type().Underlying().(*types.Struct); isStruct {
			for f := range t.Fields() {
				h.owners[f] = name
				h.hold(name, f.Pos(), f.Type(), map[types.Type]bool{})
			}
		}
	}
	for _, what := range slices.Sorted(maps.Keys(h.referred)) {
		if by := slices.Sorted(maps.Keys(h.holders[what])); len(by) > 1 {
			s.add(h.holders[what][by[0]], fmt.Sprintf("shared %s in %s: held by %s", what, s.name, strings.Join(by, ", ")))
		}
	}
	h.checkLocks()
}

// findWriters finds the methods that assign to a field of their receiver.
func (h sharing) findWriters() {
	for _, f := range h.files {
		for _, decl := range f.Decls {
			fn, isFunc := decl.(*ast.FuncDecl)
			if !isFunc || fn.Recv == nil || len(fn.Recv.List[0].Names) == 0 {
				continue
			}
			self := fn.Recv.List[0].Names[0].Pos()
			changes := func(e ast.Expr) bool {
				obj := h.info.Uses[root(e)]
				return e != root(e) && obj != nil && obj.Pos() == self
			}
			ast.Inspect(fn, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.AssignStmt:
					h.writes(fn, slices.ContainsFunc(n.Lhs, changes))
				case *ast.IncDecStmt:
					h.writes(fn, changes(n.X))
				}
				return true
			})
		}
	}
}

func (h sharing) writes(method *ast.FuncDecl, changes bool) {
	if changes {
		h.writers[h.types.Scope().Lookup(receiver(method.Recv))] = true
	}
}

// root returns the variable in which an expression such as a.b[0].c is, nil if there is none.
func root(e ast.Expr) *ast.Ident {
	for {
		switch x := e.(type) {
		case *ast.SelectorExpr:
			e = x.X
		case *ast.IndexExpr:
			e = x.X
		case *ast.StarExpr:
			e = x.X
		case *ast.ParenExpr:
			e = x.X
		default:
			id, _ := e.(*ast.Ident)
			return id
		}
	}
}

// hold records what a struct holds in a field of a type. Channels may be shared. Functions may hold anything.
func (h sharing) hold(part string, at token.Pos, t types.Type, seen map[types.Type]bool) {
	t = types.Unalias(t)
	if seen[t] {
		return
	}
	seen[t] = true
	if to := pointee(t); to != nil {
		if h.changes(to, map[types.Type]bool{}) {
			record(h.holders, to, part, at)
			record(h.referred, to, part, at)
		}
		return
	}
	named, _ := t.(*types.Named)
	if named != nil && locks(t) {
		record(h.holders, t, part, at)
	}
	switch u := t.Underlying().(type) {
	case *types.Interface:
		if !isValue(t) {
			record(h.holders, t, part, at)
			record(h.referred, t, part, at)
		}
	case *types.Struct:
		if named != nil && (named.Obj().Pkg() == h.types || isLock(t)) {
			return // it is a part itself
		}
		for f := range u.Fields() {
			h.hold(part, at, f.Type(), seen)
		}
	case *types.Map:
		h.hold(part, at, u.Elem(), seen)
	case interface{ Elem() types.Type }:
		if _, isChannel := u.(*types.Chan); !isChannel {
			h.hold(part, at, u.Elem(), seen)
		}
	}
}

func record(in map[string]map[string]token.Pos, t types.Type, part string, at token.Pos) {
	what := t.String()
	if in[what] == nil {
		in[what] = map[string]token.Pos{}
	}
	if in[what][part] == token.NoPos {
		in[what][part] = at
	}
}

// pointee returns what a pointer or an atomic pointer leads to, nil for other types.
func pointee(t types.Type) types.Type {
	if p, isPointer := t.(*types.Pointer); isPointer {
		return types.Unalias(p.Elem())
	}
	if named, ok := t.(*types.Named); ok && isLock(t) && named.TypeArgs().Len() == 1 {
		return types.Unalias(named.TypeArgs().At(0))
	}
	return nil
}

// changes reports whether state of a type may change: it leads to a lock, to an interface, or to a type with a method
// that changes it.
func (h sharing) changes(t types.Type, seen map[types.Type]bool) bool {
	t = types.Unalias(t)
	if seen[t] || isValue(t) {
		return false
	}
	seen[t] = true
	if named, ok := t.(*types.Named); ok && (isLock(t) || h.writers[named.Obj()]) {
		return true
	}
	switch u := t.Underlying().(type) {
	case *types.Interface:
		return true
	case *types.Struct:
		for f := range u.Fields() {
			if h.changes(f.Type(), seen) {
				return true
			}
		}
	case *types.Chan:
	case interface{ Elem() types.Type }:
		return h.changes(u.Elem(), seen)
	}
	return false
}

// locks reports whether a type contains a lock, without following pointers. Such a value cannot be copied.
func locks(t types.Type) bool {
	switch u := types.Unalias(t).Underlying().(type) {
	case *types.Struct:
		if isLock(t) {
			return true
		}
		for f := range u.Fields() {
			if locks(f.Type()) {
				return true
			}
		}
	case *types.Array:
		return locks(u.Elem())
	}
	return false
}

// isLock reports whether a type belongs to package sync or sync/atomic.
func isLock(t types.Type) bool {
	named, ok := types.Unalias(t).(*types.Named)
	return ok && named.Obj().Pkg() != nil && (named.Obj().Pkg().Path() == "sync" || named.Obj().Pkg().Path() == "sync/atomic")
}

// isValue reports whether an interface stands for values that do not change.
func isValue(t types.Type) bool { return t.String() == "error" || t.String() == "context.Context" }

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
