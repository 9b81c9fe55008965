package kit

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
)

// Exact compares addresses and ranges as the language does, and everything else as cmp does. Compare considers nothing and
// empty as equal, too.
var (
	Exact   = cmpopts.EquateComparable(netip.Prefix{}, netip.Addr{}, v1alpha1.CIDR{}, v1alpha1.IP{})
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

// NoError ends the test if there is an error.
func NoError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Must returns the value of a call for a test, which it ends if there is an error: Must(call())(t).
func Must[T any](value T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
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

// Succeeds reports an error, and lets the test go on.
func Succeeds(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
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
