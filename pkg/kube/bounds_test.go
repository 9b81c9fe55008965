package kube

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// clientOf returns a client of a server that answers every request with what write sends.
func clientOf(t *testing.T, write func(w http.ResponseWriter, r *http.Request)) client.WithWatch {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(write))
	t.Cleanup(server.Close)
	cfg := &rest.Config{Host: server.URL}
	cfg.Wrap(LimitTransport)
	mapper := meta.NewDefaultRESTMapper(nil)
	for _, kind := range []string{"Pod", "Secret"} {
		mapper.Add(corev1.SchemeGroupVersion.WithKind(kind), meta.RESTScopeNamespace)
	}
	c, err := client.NewWithWatch(cfg, client.Options{Mapper: mapper})
	if err != nil {
		t.Fatal(err)
	}
	return Paged(c)
}

// allocated returns how many bytes a function allocates.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// What an API server sends does not take more than a bounded amount of memory, however small it is in transit.
func TestResponsesAreBounded(t *testing.T) {
	spaces := bytes.Repeat([]byte(" "), 1<<20)
	repeat := func(w io.Writer, unit string, total int) error {
		block := []byte(strings.Repeat(unit, 1<<16/len(unit)))
		for n := 0; n < total; n += len(block) {
			if _, err := w.Write(block); err != nil {
				return err
			}
		}
		return nil
	}
	bodies := map[string]func(w io.Writer) error{
		"spaces": func(w io.Writer) error {
			for range 1024 {
				if _, err := w.Write(spaces); err != nil {
					return err
				}
			}
			return nil
		},
		"empty objects": func(w io.Writer) error {
			fmt.Fprint(w, `{"kind":"PodList","apiVersion":"v1","items":[`)
			return repeat(w, "{},", 8<<20)
		},
		"nulls": func(w io.Writer) error {
			fmt.Fprint(w, `{"kind":"PodList","apiVersion":"v1","items":[`)
			return repeat(w, "null,", 8<<20)
		},
		"depth":         func(w io.Writer) error { return repeat(w, `[`, 8<<20) },
		"a long string": func(w io.Writer) error { fmt.Fprint(w, `{"kind":"`); return repeat(w, `a\"`, 1<<30) },
		"containers of a pod": func(w io.Writer) error {
			fmt.Fprint(w, `{"items":[{"spec":{"containers":[`)
			return repeat(w, "{},", 8<<20)
		},
	}
	for name, body := range bodies {
		for _, zipped := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, zipped %v", name, zipped), func(t *testing.T) {
				c := clientOf(t, func(w http.ResponseWriter, _ *http.Request) {
					w.Header().Set("Content-Type", "application/json")
					if !zipped {
						_ = body(w) // the client ends the connection
						return
					}
					w.Header().Set("Content-Encoding", "gzip")
					z := gzip.NewWriter(w)
					_ = body(z)
				})
				var err error
				took := allocated(func() { err = c.List(t.Context(), &corev1.PodList{}) })
				if err == nil || !strings.Contains(err.Error(), errTooLarge.Error()) {
					t.Errorf("want an error, got %v", err)
				}
				if took > 2*maxResponse {
					t.Errorf("%d MiB were allocated", took>>20)
				}
			})
		}
	}
}

// A server cannot choose an encoding whose size is not counted.
func TestOnlyJSONIsRead(t *testing.T) {
	accepted := ""
	c := clientOf(t, func(w http.ResponseWriter, r *http.Request) {
		accepted = r.Header.Get("Accept")
		w.Header().Set("Content-Type", "application/vnd.kubernetes.protobuf")
		fmt.Fprint(w, "k8s\x00")
	})
	for _, o := range []client.Object{&corev1.Pod{}, SecretMetadata("x")} {
		err := c.Get(t.Context(), client.ObjectKey{Namespace: "n", Name: "x"}, o)
		if err == nil || !strings.Contains(err.Error(), "although JSON was requested") {
			t.Errorf("%T: %v", o, err)
		}
		if isBinary(accepted) || !strings.Contains(accepted, "application/json") {
			t.Errorf("%T: requested %q", o, accepted)
		}
	}
}

// Each event of a watch is counted separately, also without line breaks between them.
func TestEventsAreBounded(t *testing.T) {
	for _, end := range []string{"\n", ""} {
		b := &limitedBody{ReadCloser: io.NopCloser(strings.NewReader(strings.Repeat(`{"object":[null,{"n":"n{"}]}`+end, 100_000))), isStream: true}
		if _, err := io.Copy(io.Discard, b); err != nil {
			t.Error(err)
		}
		b.ReadCloser = io.NopCloser(strings.NewReader("[" + strings.Repeat(`{},`, 1_000_000)))
		if _, err := io.Copy(io.Discard, b); err == nil {
			t.Error("an endless event was read")
		}
	}
}

// Lists are read in pages, and the result is that of one request. A server whose pages never end is not read forever.
func TestListsArePaged(t *testing.T) {
	const total = 3*pageSize + 7
	requests := 0
	items := func(n, from int) (out []corev1.Pod) {
		for i := range n {
			out = append(out, corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(from + i)}})
		}
		return out
	}
	var endless bool
	c := pagedClient{maxHeap: heap() + 256<<20, WithWatch: interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{
		List: func(_ context.Context, _ client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			requests++
			o := (&client.ListOptions{}).ApplyOptions(opts)
			from := 0
			if o.Continue != "" {
				if _, err := fmt.Sscan(o.Continue, &from); err != nil {
					t.Error(err)
				}
			}
			pods, n := list.(*corev1.PodList), int(o.Limit)
			if endless {
				n = 1 << 16
			} else if from+n >= total {
				pods.Items = items(total-from, from)
				return nil
			}
			pods.Items, pods.Continue = items(n, from), fmt.Sprint(from+n)
			return nil
		},
	})}
	var list corev1.PodList
	if err := c.List(t.Context(), &list); err != nil {
		t.Fatal(err)
	}
	if len(list.Items) != total || requests != 4 || list.Items[total-1].Name != fmt.Sprint(total-1) || list.Continue != "" {
		t.Errorf("%d items in %d requests", len(list.Items), requests)
	}
	endless = true
	if err := c.List(t.Context(), &corev1.PodList{}); err == nil {
		t.Error("an endless list was read")
	}
}
