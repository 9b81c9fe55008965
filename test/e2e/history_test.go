package e2e

import (
	"bytes"
	"cmp"
	"encoding/json"
	"io"
	"maps"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
)

const (
	// longestPause is for how long a write of a ledger is held up at most, so that commands come between each other's
	// reads and writes.
	longestPause = 100 * time.Millisecond
	// checkTimeout is how long the check of a history may take.
	checkTimeout = time.Minute
)

// history is what commands have read from the ledgers of clusters, and written into them.
type history struct {
	begun time.Time

	mu      sync.Mutex
	random  *rand.Rand
	clients int
	// seen are the entries of each version of a ledger that a command has read.
	seen       map[version]string
	operations map[string][]porcupine.Operation // by cluster
}

// version is that of a cluster's ledger.
type version struct{ cluster, resourceVersion string }

// access is the input of an operation. A ledger without entries and none at all are one state.
type access struct {
	write bool
	// base is what was read before, value what is written in its place.
	base, value string
	// unknown says that nobody knows whether it was written.
	unknown bool
}

// register is what a ledger should be: each write is of what there is, not of what there was.
var register = porcupine.Model{
	Init: func() any { return "" },
	Step: func(state, input, output any) (bool, any) {
		in := input.(access)
		switch {
		case !in.write:
			return state == output, state
		case state == in.base:
			return true, in.value
		default:
			return in.unknown, state
		}
	},
}

func newHistory(random *rand.Rand) *history {
	return &history{begun: time.Now(), random: random, seen: map[version]string{}, operations: map[string][]porcupine.Operation{}}
}

// kubeconfig is for one command, whose reads and writes are noted.
func (h *history) kubeconfig(t testing.TB, clusters ...*cluster) string {
	t.Helper()
	h.mu.Lock()
	h.clients++
	client := h.clients
	h.mu.Unlock()
	return between(t, func(c *cluster, w http.ResponseWriter, r *http.Request, api http.Handler) {
		ledger := strings.HasPrefix(r.URL.Path, "/apis/"+v1alpha1.GroupVersion.String()+"/clusternetworks")
		if !ledger || r.Method != http.MethodGet && r.Method != http.MethodPut || r.URL.Query().Has("watch") {
			api.ServeHTTP(w, r)
			return
		}
		in := access{write: r.Method == http.MethodPut}
		if in.write {
			body, err := io.ReadAll(r.Body)
			if err != nil {
				return // the command has ended
			}
			value, of := entries(body)
			h.mu.Lock()
			in.base, in.value = h.seen[version{c.Name, of}], value
			pause := time.Duration(h.random.Int64N(int64(longestPause)))
			h.mu.Unlock()
			time.Sleep(pause)
			r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
		}
		answer := httptest.NewRecorder()
		answer.Code = http.StatusBadGateway // if there is none
		call := time.Since(h.begun)
		defer func() { // a command that is killed makes the proxy panic
			read, of := entries(answer.Body.Bytes())
			h.mu.Lock()
			defer h.mu.Unlock()
			switch {
			case answer.Code == http.StatusOK, answer.Code == http.StatusNotFound && !in.write:
				h.seen[version{c.Name, of}] = read
			case in.write && answer.Code >= http.StatusInternalServerError:
				in.unknown = true
			default:
				return // nothing was read, and nothing written
			}
			op := porcupine.Operation{ClientId: client, Input: in, Output: read, Call: int64(call), Return: int64(time.Since(h.begun))}
			if in.unknown {
				op.Return = math.MaxInt64
			}
			h.operations[c.Name] = append(h.operations[c.Name], op)
		}()
		api.ServeHTTP(answer, r)
		maps.Copy(w.Header(), answer.Header())
		w.WriteHeader(answer.Code)
		_, _ = w.Write(answer.Body.Bytes())
	}, clusters...)
}

// check says for each cluster whether there is an order of all reads and writes, each at some moment between its begin
// and its end, in which every read returns what the writes before it have made.
func (h *history) check(t *testing.T) (out map[string]porcupine.CheckResult) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	out = map[string]porcupine.CheckResult{}
	for name, ops := range h.operations {
		writes := 0
		for _, op := range ops {
			if op.Input.(access).write {
				writes++
			}
		}
		out[name] = porcupine.CheckOperationsTimeout(register, ops, checkTimeout)
		t.Logf("%s: %d reads and %d writes of the ledger by %d commands: %s", name, len(ops)-writes, writes, h.clients, out[name])
	}
	return out
}

// entries are those of a ledger, or of a list with one, and its version.
func entries(body []byte) (entries, resourceVersion string) {
	var list v1alpha1.ClusterNetworkList
	var one v1alpha1.ClusterNetwork
	if json.Unmarshal(body, &list) == nil && len(list.Items) > 0 {
		one = list.Items[0]
	} else if json.Unmarshal(body, &one) != nil {
		return "", ""
	}
	if len(one.Spec.Peers) == 0 {
		return "", one.ResourceVersion
	}
	slices.SortFunc(one.Spec.Peers, func(a, b v1alpha1.PeerAllocation) int { return cmp.Compare(a.ClusterID, b.ClusterID) })
	raw, err := json.Marshal(one.Spec.Peers)
	if err != nil {
		return err.Error(), one.ResourceVersion
	}
	return string(raw), one.ResourceVersion
}
