package exchange

import (
	"bytes"
	"errors"
	"io"
	"net/netip"
	"testing"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/test/kit"
)

// A stream of frames yields no more than the limits allow, and no endpoint that must not be called.
func FuzzFrames(f *testing.F) {
	f.Add(append(encode(Announcement{Endpoints: []string{"192.0.2.1:51840", "10.96.0.10:9153"}, NodeIPs: []v1alpha1.IP{ip("192.0.2.1")}}), 0, 0, 0, 7, 1, 9, 0))
	f.Add(encode(Announcement{}))
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	filter := Filter{Own: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")}, Endpoints: []string{"10.1.2.3:51840"}}
	f.Fuzz(func(t *testing.T, stream []byte) {
		r, frames := bytes.NewReader(stream), newBudgets()
		for {
			_, content, err := readFrame(r, frames)
			if err != nil {
				break
			}
			a, err := decode(content)
			if err != nil {
				kit.ErrorIf(t, !errors.Is(err, errMalformed), "%v", err)
				continue
			}
			kit.ErrorIf(t, len(a.Endpoints) > MaxEndpoints || len(a.NodeIPs) > MaxNodeIPs, "%d endpoints, %d nodes", len(a.Endpoints), len(a.NodeIPs))
			usable, _ := filter.Usable(*a)
			for _, s := range usable.Endpoints {
				e, err := netip.ParseAddrPort(s)
				kit.ErrorIf(t, err != nil || !e.Addr().IsGlobalUnicast() || e.Addr().Zone() != "" || filter.Own[0].Contains(e.Addr().Unmap()), "%q may be called: %v", s, err)
			}
			again, err := decode(encode(*a)[headerLength+4:])
			kit.ErrorIf(t, err != nil || len(again.Endpoints) != len(a.Endpoints), "%+v became %+v, %v", a, again, err)
		}
		kit.ErrorIf(t, r.Len() > 0 && r.Len() == len(stream) && len(stream) >= 6 && kit.Err(io.ReadAll(r)) != nil, "nothing was read")
	})
}
