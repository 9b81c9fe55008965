package kit

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// Exact compares addresses and ranges as the language does, and everything else as cmp does. Compare considers nothing and
// empty as equal, too.
var (
	Exact   = cmpopts.EquateComparable(netip.Prefix{}, netip.Addr{}, netip.AddrPort{})
	Compare = cmp.Options{Exact, cmpopts.EquateEmpty()}
)

// Check reports how a value differs from the wanted one. Without options it compares exactly.
func Check[T any](t testing.TB, what string, got, want T, opts ...cmp.Option) {
	t.Helper()
	if diff := difference(got, want, opts); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// MustBe does the same, and ends the test if they differ.
func MustBe[T any](t testing.TB, what string, got, want T, opts ...cmp.Option) {
	t.Helper()
	if diff := difference(got, want, opts); diff != "" {
		t.Fatalf("%s (-want +got):\n%s", what, diff)
	}
}

func difference(got, want any, opts []cmp.Option) string {
	if len(opts) == 0 {
		opts = []cmp.Option{Exact}
	}
	return cmp.Diff(want, got, opts...)
}

// NoError ends the test if there is an error. The message says what was done.
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

// Must returns the value of a call for a test, which it ends if there is an error: Must(call())(t).
func Must[T any](value T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		NoError(t, err)
		return value
	}
}

// ErrorIf reports what is wrong, if something is.
func ErrorIf(t testing.TB, wrong bool, format string, args ...any) {
	t.Helper()
	if wrong {
		t.Errorf(format, args...)
	}
}

// FatalIf reports what is wrong, and ends the test, if something is.
func FatalIf(t testing.TB, wrong bool, format string, args ...any) {
	t.Helper()
	if wrong {
		t.Fatalf(format, args...)
	}
}

// Err is the error of a call whose value does not matter.
func Err[T any](_ T, err error) error { return err }

// FailsWith ends the test unless an error is the wanted one.
func FailsWith(t testing.TB, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("want %v, got %v", want, err)
	}
}
