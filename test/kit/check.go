package kit

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// Check reports how what a test got differs from what it wants.
func Check[T any](t testing.TB, what string, got, want T) {
	t.Helper()
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}, netip.AddrPort{})); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// Must returns a function that ends the test if there was an error, and otherwise returns the value:
//
//	content := kit.Must(os.ReadFile(name))(t)
func Must[T any](value T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		NoError(t, err)
		return value
	}
}

// NoError ends the test if there was an error. The message says what was done.
func NoError(t testing.TB, err error, message ...any) {
	t.Helper()
	if err != nil {
		t.Fatal(described(err, message))
	}
}

// CheckNoError reports an error, and lets the test continue. The message says what was done.
func CheckNoError(t testing.TB, err error, message ...any) {
	t.Helper()
	if err != nil {
		t.Error(described(err, message))
	}
}

// described begins with a message: a format and its arguments.
func described(err error, message []any) string {
	if len(message) == 0 {
		return err.Error()
	}
	return fmt.Sprintf(message[0].(string), message[1:]...) + ": " + err.Error()
}

// CheckError reports an error that does not contain a text, or that there is none.
func CheckError(t testing.TB, what string, err error, text string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), text) {
		t.Errorf("%s: got error %v, want one with %q", what, err, text)
	}
}

// CheckContains reports which texts are not part of what a test got.
func CheckContains(t testing.TB, what, got string, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if !strings.Contains(got, text) {
			t.Errorf("%s: no %q in\n%s", what, text, got)
		}
	}
}
