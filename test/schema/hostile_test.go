package schema_test

import (
	"testing"

	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/schema"
)

// Whatever an API server stores, our types read, all of it.
func TestHostileObjectsAreRead(t *testing.T) {
	kit.Slow(t)
	for kind, of := range schema.Examples() {
		t.Run(kind, func(t *testing.T) {
			large, bound := 0, schema.NewBound(t, "reading")
			schema.Hostile(t, 300, of, func(obj map[string]any) {
				if len(encode(t, obj)) > 50_000 {
					large++
				}
				bound.Of(obj, func() {
					err := readable(kind, obj)
					kit.ErrorIf(t, err != nil, "%v", err)
				})
			})
			t.Logf("%d of more than 50 kB", large)
		})
	}
}
