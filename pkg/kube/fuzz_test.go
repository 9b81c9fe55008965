package kube

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"testing"
	"testing/iotest"

	"github.com/liqonet/liqonet/test/kit"
)

// The estimate for a response does not depend on how it arrives, and is never less than what its values take.
func FuzzLimitedBody(f *testing.F) {
	f.Add([]byte(`{"a":[null,{},[],"\\\"]",{"b":"\u001b"}],"n":17}`), false)
	f.Add([]byte("{\"type\":\"ADDED\"}\n{\"type\":\"DELETED\"}\n"), true)
	f.Add([]byte(`{"cpu":"1e-9","memory":"-12345678901234567890.5E1000","n":1e-2147483640}`), true)
	f.Fuzz(func(t *testing.T, body []byte, isStream bool) {
		whole := &limitedBody{ReadCloser: io.NopCloser(bytes.NewReader(body)), isStream: isStream, maxHeap: maxHeap}
		pieces := &limitedBody{ReadCloser: io.NopCloser(iotest.OneByteReader(bytes.NewReader(body))), isStream: isStream, maxHeap: maxHeap}
		err, errOfPieces := kit.Err(io.ReadAll(whole)), kit.Err(io.ReadAll(pieces))
		kit.FatalIf(t, (err == nil) != (whole.size <= maxResponse) || !errors.Is(errOfPieces, err), "%v at once, %v in pieces", err, errOfPieces)
		kit.ErrorIf(t, whole.size != pieces.size || whole.size < 0, "%d at once, %d in pieces", whole.size, pieces.size)
		var value any
		if err == nil && json.Unmarshal(body, &value) == nil && !isStream {
			n := int64(count(value))
			kit.ErrorIf(t, whole.size < n*perValue, "estimated as %d, although it has %d objects, lists and null values", whole.size, n)
		}
	})
}

// count returns how many objects, arrays and null values a value has.
func count(value any) (n int) {
	switch v := value.(type) {
	case nil:
		return 1
	case map[string]any:
		n = 1
		for _, child := range v {
			n += count(child)
		}
	case []any:
		n = 1
		for _, child := range v {
			n += count(child)
		}
	}
	return n
}
