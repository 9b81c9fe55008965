package history

import (
	"testing"
	"unicode"

	"github.com/liqonet/liqonet/test/kit"
)

// What agents' accounts wrote into a record is skipped, or has the length and the characters of an entry.
func FuzzDecode(f *testing.F) {
	f.Add("001", `{"n":1,"t":"2026-01-01T00:00:00Z","p":"b","s":"plane","to":"up"}`)
	f.Add(ClockKey, "2026-01-01T00:00:00Z")
	f.Fuzz(func(t *testing.T, key, value string) {
		for _, e := range Decode(map[string]string{key: value}) {
			for _, s := range []string{e.Subject, e.From, e.To, e.Reason} {
				control := false
				for _, r := range s {
					control = control || unicode.IsControl(r)
				}
				kit.ErrorIf(t, len(s) > maxText || control, "%q", s)
			}
			kit.ErrorIf(t, e.Number < 1 || Key(e.Number) != key, "entry %d has the key %q", e.Number, key)
		}
	})
}
