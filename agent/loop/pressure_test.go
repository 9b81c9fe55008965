package loop

import "testing"

// As kernels write it, and as those before 5.13 do, which know no "full" for processors.
func TestParsePressure(t *testing.T) {
	for text, want := range map[string]int{
		"some avg10=99.00 avg60=61.50 avg300=20.00 total=1\nfull avg10=98.00 avg60=57.31 avg300=20.00 total=1\n": 57,
		"some avg10=1.00 avg60=61.50 avg300=20.00 total=1\n":                                                     0,
		"": 0,
	} {
		if got := parsePressure(text); got != want {
			t.Errorf("%q: got %d, want %d", text, got, want)
		}
	}
}
