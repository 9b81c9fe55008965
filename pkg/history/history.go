// Package history is the form of the records in which agents note changes of state, and how the
// records of several agents come onto one time line. It is pure.
//
// A record is the data of one ConfigMap. Each entry is a value of its own, by its number modulo
// Size. So an agent writes what is new and no more, and the oldest entry goes when there are
// Size of them.
//
// Out of scope: what is noted, and when (agent/history).
package history

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
)

const (
	// Size is how many entries a record has at most, each of maxValue bytes at most.
	Size     = 256
	maxValue = 2048
	// maxText is how many bytes a reason may have, and maxState one of the other texts.
	maxText, maxState = 256, 96
	// ClockKey is where a record has the agent's time at its last write (RFC 3339).
	ClockKey = "clock"
)

// Entry is one change of state.
type Entry struct {
	// Number counts the entries of a record, from 1.
	Number int64 `json:"number"`
	// Time is by the clock of the agent.
	Time time.Time `json:"time"`
	// Peering is the Peering's name, Plane the plane's index; nil where it is about all.
	Peering string `json:"peering"`
	Plane   *int32 `json:"plane,omitempty"`
	// What has changed: from one state to another, for a reason.
	What   string `json:"what"`
	From   string `json:"from,omitempty"`
	To     string `json:"to"`
	Reason string `json:"reason,omitempty"`
}

// Key is where a record has the entry of a number.
func Key(number int64) string { return fmt.Sprintf("%03d", number%Size) }

// Encode returns the value of an entry. Texts that are too long are cut.
func Encode(e Entry) (string, error) {
	e = bounded(e)
	e.Time = e.Time.UTC().Truncate(time.Millisecond)
	var out strings.Builder
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false) // it would make six bytes of one
	err := encoder.Encode(e)
	return strings.TrimSpace(out.String()), err
}

func bounded(e Entry) Entry {
	e.What, e.From, e.To, e.Reason = short(e.What, maxState), short(e.From, maxState), short(e.To, maxState), short(e.Reason, maxText)
	return e
}

// short is a text of at most so many bytes, without control characters: JSON has six bytes for each.
func short(s string, most int) string {
	const end = "…"
	s = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, s)
	if len(s) > most {
		return strings.ToValidUTF8(s[:most-len(end)], "") + end
	}
	return s
}

// Decode returns the entries of a record, the oldest first. What is none is left out: whoever has
// the agent's account may have written it.
func Decode(data map[string]string) (out []Entry) {
	for key, value := range data {
		var e Entry
		if len(value) > maxValue || json.Unmarshal([]byte(value), &e) != nil || e.Number < 1 || Key(e.Number) != key {
			continue
		}
		out = append(out, bounded(e))
	}
	slices.SortFunc(out, func(a, b Entry) int { return cmp.Compare(a.Number, b.Number) })
	return out
}

const (
	// stampError is how much earlier a time stamp of whole seconds may be than what it stamps.
	stampError = time.Second
	// slowest is how long a request may take to be stamped.
	slowest = 2 * time.Second
)

// Correction is what has to be added to times by an agent's clock, to have them by the API server's.
// The agent's said clock when it sent a request. The API server says that this was at stamp, in whole
// seconds. It is 0 if both clocks may be the same, as the agent's is finer than the stamp.
// What is corrected is right to about a second.
func Correction(clock, stamp time.Time) time.Duration {
	if d := stamp.Sub(clock); d < -stampError || d > slowest {
		return d + stampError/2
	}
	return 0
}

// Between is the same for two API servers, both of whose clocks were read to the second at the
// same moment.
func Between(from, to time.Time) time.Duration {
	if d := to.Sub(from); d.Abs() > stampError+stampError/2 {
		return d
	}
	return 0
}
