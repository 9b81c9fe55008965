package netns

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/liqonet/liqonet/test/kit"
)

// Expect runs a function in a namespace, and checks whether it has changed something.
func Expect(t testing.TB, ns *NS, want bool, what string, f func() (changed bool, err error)) {
	t.Helper()
	got := In(t, ns, f)
	kit.ErrorIf(t, got != want, "%s: changed is %v", what, got)
}

// Ruleset returns nft's listing, with tables and elements of sets in an order that does not depend on which of them was
// re-created.
func Ruleset(t testing.TB, ns *NS) string {
	t.Helper()
	elements := regexp.MustCompile(`(?s)elements = \{ .*? \}`)
	list := elements.ReplaceAllStringFunc(ns.Output(t, "nft", "list", "ruleset"), func(s string) string {
		all := regexp.MustCompile(`,\s*`).Split(s[len("elements = { "):len(s)-len(" }")], -1)
		slices.Sort(all)
		return strings.Join(all, "\n")
	})
	tables := strings.Split("\n"+strings.TrimSuffix(list, "\n"), "\ntable ")
	slices.Sort(tables)
	return strings.Join(tables, "\ntable ")
}
