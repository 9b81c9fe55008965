package probe

import (
	"encoding/json"
	"testing"

	"github.com/liqonet/liqonet/test/kit"
)

// A task is what its argument says, and a line of a pod's log is read or ignored.
func FuzzParse(f *testing.F) {
	f.Add(Task{Token: "t", Serve: &Serve{Name: "n", Port: 7}}.String())
	f.Add(`{"result":{"answers":[{}]},"error":"x","ready":true}`)
	f.Fuzz(func(t *testing.T, s string) {
		if task, err := Parse(s); err == nil {
			again, err := Parse(task.String())
			kit.ErrorIf(t, err != nil || again.String() != task.String(), "%s became %s, %v", task, again, err)
		}
		line := Line{Result: &Result{}}
		if json.Unmarshal([]byte(s), &line) == nil {
			kit.NoError(t, kit.Err(json.Marshal(line)))
		}
	})
}
