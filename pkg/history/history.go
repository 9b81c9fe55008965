// Package history defines the format of the records in which agents record state changes, and merges the records of
// several agents into one timeline. It is pure.
//
// A record is the data of one ConfigMap. Each entry is a separate value, stored under its number modulo Size. So an
// agent writes only what is new, and each entry after the first Size replaces the oldest one.
//
// Out of scope: what is recorded, and when (agent/history).
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
	// Size is the maximum number of entries in a record.
	Size = 256
	// MaxValue is the maximum size of an entry, in bytes.
	MaxValue = 2048
	// maxText is the maximum size of a reason, and maxState that of the other texts, in bytes.
	maxText, maxState = 256, 96
	// ClockKey is the key of the agent's time at its last write (RFC 3339).
	ClockKey = "clock"
)

// Entry is one change of state.
type Entry struct {
	// Number counts the entries of a record, from 1.
	Number int64 `json:"number"`
	// Time is by the agent's clock.
	Time time.Time `json:"time"`
	// Peering is the Peering's name, and Plane the plane's index, nil if the entry concerns all planes.
	Peering string `json:"peering"`
	Plane   *int32 `json:"plane,omitempty"`
	// Subject has changed from one state, From, to another, To, for a Reason.
	Subject string `json:"what"`
	From    string `json:"from,omitempty"`
	To      string `json:"to"`
	Reason  string `json:"reason,omitempty"`
}

// Key returns the key of an entry by its number.
func Key(number int64) string { return fmt.Sprintf("%03d", number%Size) }

// Encode returns the value of an entry. It truncates texts that are too long.
func Encode(e Entry) (string, error) {
	e = truncated(e)
	e.Time = e.Time.UTC().Truncate(time.Millisecond)
	var out strings.Builder
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false) // escapes take six bytes per character
	err := encoder.Encode(e)
	return strings.TrimSpace(out.String()), err
}

func truncated(e Entry) Entry {
	e.Subject, e.Reason = truncate(e.Subject, maxState), truncate(e.Reason, maxText)
	e.From, e.To = truncate(e.From, maxState), truncate(e.To, maxState)
	return e
}

// truncate truncates a text to a number of bytes, and replaces control characters, since JSON uses six bytes for each.
func truncate(s string, limit int) string {
	const end = "…"
	s = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, s)
	if len(s) > limit {
		return strings.ToValidUTF8(s[:limit-len(end)], "") + end
	}
	return s
}

// Decode returns the entries of a record, the oldest first. It skips invalid ones, which anyone with the agent's
// account may have written.
func Decode(data map[string]string) (out []Entry) {
	for key, value := range data {
		var e Entry
		if len(value) > MaxValue || json.Unmarshal([]byte(value), &e) != nil || e.Number < 1 || Key(e.Number) != key {
			continue
		}
		out = append(out, truncated(e))
	}
	slices.SortFunc(out, func(a, b Entry) int { return cmp.Compare(a.Number, b.Number) })
	return out
}

const (
	// timestampError is how much earlier a timestamp in whole seconds may be than the event.
	timestampError = time.Second
	// maxDelay is how long it may take until a request is stamped.
	maxDelay = 2 * time.Second
)

// Correction returns the time to add to times by an agent's clock, to convert them to the API server's clock. The
// agent's clock was at clock when it sent a request, which the API server stamped with stamp, in whole seconds.
// Correction returns 0 if both clocks may agree, since the agent's times are more precise than the stamp. Corrected
// times are accurate to about a second.
func Correction(clock, stamp time.Time) time.Duration {
	if d := stamp.Sub(clock); d < -timestampError || d > maxDelay {
		return d + timestampError/2
	}
	return 0
}

// ClockOffset does the same for two API servers whose clocks were read at the same moment, in whole seconds.
func ClockOffset(from, to time.Time) time.Duration {
	if d := to.Sub(from); d.Abs() > timestampError+timestampError/2 {
		return d
	}
	return 0
}
