package nft_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/liqonet/liqonet/pkg/nft"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/netns"
)

func TestUninterrupted(t *testing.T) {
	refused := errors.New("refused")
	for name, test := range map[string]struct {
		// others change something during this many attempts.
		others int
		err    error
		want   int
	}{
		"nobody else":           {0, nil, 1},
		"some changes":          {2, nil, 3},
		"changes without end":   {100, nil, nft.ListAttempts},
		"the kernel refuses it": {100, refused, 1},
	} {
		t.Run(name, func(t *testing.T) {
			ns := netns.New(t, name)
			attempts := 0
			err := ns.Run(func() error {
				return nft.Uninterrupted(func() error {
					if attempts++; attempts <= test.others {
						ns.Output(t, "nft", fmt.Sprintf("add table ip x%d", attempts))
					}
					return test.err
				})
			})
			kit.ErrorIf(t, !errors.Is(err, test.err) || attempts != test.want,
				"%d attempts, error %v, want %d, %v", attempts, err, test.want, test.err)
		})
	}
}
