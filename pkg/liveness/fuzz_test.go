package liveness

import (
	"testing"

	"github.com/liqonet/liqonet/test/kit"
)

// Whatever arrives is refused, or has a meaning that survives encoding.
func FuzzDecode(f *testing.F) {
	for _, kind := range []byte{kindRequest, kindAnswer} {
		b := make([]byte, headerLength)
		frame{kind: kind, sequence: 7, Request: Request{InUse: true, Reached: 3}, Answer: Answer{State: State{Up: true}, MTU: 1400}}.encode(b)
		f.Add(b)
	}
	f.Add([]byte(nil))
	f.Fuzz(func(t *testing.T, packet []byte) {
		for _, kind := range []byte{kindRequest, kindAnswer} {
			got, ok := decode(packet, kind)
			if !ok {
				continue
			}
			again := make([]byte, len(packet))
			got.encode(again)
			same, ok := decode(again, kind)
			kit.ErrorIf(t, !ok || same != got, "%+v became %+v", got, same)
		}
	})
}
