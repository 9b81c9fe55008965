package bare_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/liqonet/liqonet/test/bare"
	"github.com/liqonet/liqonet/test/kit"
)

// The baseline is what its timeout says, on a machine that is not overloaded.
func TestOutage(t *testing.T) {
	kit.NotShort(t)
	t.Logf("a bare probe: %s", bare.Outage(t))
}

// The page about reliability has the ratio that tests compare with.
func TestDocumentedRatio(t *testing.T) {
	text := kit.Must(os.ReadFile("../../docs/reliability.md"))(t)
	kit.CheckContains(t, "docs/reliability.md", string(text), fmt.Sprintf("%v times", bare.Documented))
}
