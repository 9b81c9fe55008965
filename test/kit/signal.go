package kit

import (
	"testing"
	"time"
)

// Signaled reports an error if there is no signal soon.
func Signaled(t testing.TB, signals <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-signals:
	case <-time.After(5 * time.Second):
		t.Errorf("%s was not signaled", what)
	}
}

// Silent reports an error if there is a signal within a time.
func Silent(t testing.TB, signals <-chan struct{}, d time.Duration, what string) {
	t.Helper()
	select {
	case <-signals:
		t.Errorf("%s was signaled", what)
	case <-time.After(d):
	}
}
