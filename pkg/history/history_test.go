package history

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/liqonet/liqonet/test/kit"
)

// If there are more entries than a record has room for, the last ones are kept. Other data is ignored.
func TestRecord(t *testing.T) {
	at := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	data := map[string]string{ClockKey: "x", "000": "no entry", "007": `{"number":9,"to":"of another key"}`, "999": `{"number":-1}`, "big": strings.Repeat("x", MaxValue+1)}
	const written = 3*Size + 5
	size := 0
	for i := range written {
		e := Entry{Number: int64(i + 1), Time: at, Peering: strings.Repeat("p", 63), Plane: new(int32(3)), Subject: strings.Repeat("w", 1000), From: strings.Repeat("f", 1000), To: fmt.Sprint(i + 1), Reason: strings.Repeat("ü", 1000)}
		value := kit.Must(Encode(e))(t)
		data[Key(e.Number)] = value
		size = max(size, len(value))
	}
	got := Decode(data)
	kit.FatalIf(t, len(got) != Size || got[0].To != fmt.Sprint(written-Size+1) || got[Size-1].To != fmt.Sprint(written),
		"%d entries: %v", len(got), got)
	kit.ErrorIf(t, size > MaxValue || Size*MaxValue > 1<<19, "an entry has %d bytes", size)
}

// JSON encodes some characters in two or six bytes. Decode still accepts everything that Encode returns.
func TestLongestEntryIsRead(t *testing.T) {
	for _, char := range []string{"<", "\x00", "\"", "\\", "\u2028", "\xff"} {
		long := strings.Repeat(char, 1000)
		value := kit.Must(Encode(Entry{Number: 1, Peering: strings.Repeat("p", 63), Subject: long, From: long, To: long, Reason: long}))(t)
		got := Decode(map[string]string{Key(1): value})
		kit.ErrorIf(t, len(got) != 1, "%d bytes of %q are not read", len(value), char)
	}
}

func TestCorrection(t *testing.T) {
	at := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	for _, tt := range []struct{ ahead, delay, want time.Duration }{
		{0, 0, 0},
		{0, time.Second, 0},
		{500 * time.Millisecond, 0, 0},
		{time.Hour, 0, -time.Hour},
		{-time.Hour, 0, time.Hour},
		{-3 * time.Second, 0, 3 * time.Second},
	} {
		for _, part := range []time.Duration{0, 400 * time.Millisecond, 999 * time.Millisecond} {
			server := at.Add(part)
			got := Correction(server.Add(tt.ahead-tt.delay), server.Truncate(time.Second))
			kit.ErrorIf(t, (got-tt.want).Abs() > time.Second || tt.want == 0 && got != 0 && tt.ahead == 0,
				"a clock %s ahead, a request of %s, %s after the second: %s, want %s", tt.ahead, tt.delay, part, got, tt.want)
		}
	}
	for ahead, want := range map[time.Duration]time.Duration{0: 0, time.Second: 0, -time.Second: 0, time.Minute: time.Minute, -time.Minute: -time.Minute} {
		kit.Check(t, "ahead", ClockOffset(at, at.Add(ahead)), want)
	}
}
