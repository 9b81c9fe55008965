package plan

import (
	"testing"

	"github.com/liqonet/liqonet/test/kit"
)

// An API server refuses values that are not known yet, and elements of lists without their key.
func TestKnownPart(t *testing.T) {
	later := Pending("of Peering a").jsonValue()
	plane := func(key any) map[string]any { return map[string]any{"index": int64(1), "publicKey": key} }
	manifest := map[string]any{
		"metadata": map[string]any{"name": "x", "ownerReferences": []any{map[string]any{"name": "a", "uid": later}, map[string]any{"name": "b", "uid": "1"}}},
		"spec":     map[string]any{"planes": []any{plane("key"), plane(later)}, "cidrs": []any{later, "10.0.0.0/16"}, "id": later},
	}
	part, isWhole := KnownPart(manifest)
	kit.ErrorIf(t, isWhole, "nothing is left out")
	kit.Check(t, "the known part", part, map[string]any{
		"metadata": map[string]any{"name": "x", "ownerReferences": []any{map[string]any{"name": "b", "uid": "1"}}},
		"spec":     map[string]any{"planes": []any{plane("key")}, "cidrs": []any{"10.0.0.0/16"}},
	})
	same, isWhole := KnownPart(part)
	kit.ErrorIf(t, !isWhole, "something is left out of what is known")
	kit.Check(t, "the known part of what is known", same, part)
}
