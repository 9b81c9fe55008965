package kube

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	goruntime "runtime"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/liqonet/liqonet/test/kit"
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
	var before, after goruntime.MemStats
	goruntime.ReadMemStats(&before)
	f()
	goruntime.ReadMemStats(&after)
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
	quantity := func(value string) func(w io.Writer) error {
		return func(w io.Writer) error {
			_, err := fmt.Fprint(w, `{"items":[{"spec":{"containers":[{"resources":{"limits":{"cpu":`+value+`}}}]}}]}`)
			return err
		}
	}
	// sequence is an item with that many elements that their bytes alone are not too large.
	sequence := func(start, element, end string) func(w io.Writer) error {
		return func(w io.Writer) error {
			b := bytes.NewBufferString(`{"kind":"PodList","apiVersion":"v1","items":[` + start)
			for i := 0; b.Len() < maxResponse/perByte-1<<20; i++ {
				if strings.Contains(element, "%") {
					fmt.Fprintf(b, element, i)
				} else {
					b.WriteString(element)
				}
			}
			b.Truncate(b.Len() - 1)
			return kit.Err(fmt.Fprint(w, b, end, "]}"))
		}
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
		"objects after an escaped quote": sequence(`{"metadata":{"name":"\""}},`, "{},", ""),
		"nulls": func(w io.Writer) error {
			fmt.Fprint(w, `{"kind":"PodList","apiVersion":"v1","items":[`)
			return repeat(w, "null,", 8<<20)
		},
		"depth":                               func(w io.Writer) error { return repeat(w, `[`, 8<<20) },
		"a long string":                       func(w io.Writer) error { fmt.Fprint(w, `{"kind":"`); return repeat(w, `a\"`, 1<<30) },
		"a quantity with a negative exponent": quantity(`"1e-2147483640"`),
		"one whose exponent wraps":            quantity(`"1e2294967296"`),
		"one that is a number":                quantity(`1e-2147483640`),
		"one between spaces":                  quantity("\" \u20031E-2147483640\u00a0 \""),
		"a long one with an exponent":         quantity(`"-0.1234567890123456789012345e2000000000"`),
		"a long one":                          quantity(`"` + strings.Repeat("1", 1<<22) + `"`),
		"one whose name is escaped": func(w io.Writer) error {
			return kit.Err(fmt.Fprint(w, `{"items":[{"spec":{"containers":[{"resources":{"lim\u0069ts":{"cpu":"1e-2147483640"}}}]}}]}`))
		},
		"one of its own": func(w io.Writer) error {
			return kit.Err(fmt.Fprint(w, `{"items":[{"spec":{"volumes":[{"name":"x","emptyDir":{"medium":"","sizeLimit":"1e-2147483640"}}]}}]}`))
		},
		"many of them": quantity(strings.Repeat(`"1e-99999","memory":`, 1000) + `"1"`),
		"containers of a pod": func(w io.Writer) error {
			fmt.Fprint(w, `{"items":[{"spec":{"containers":[`)
			return repeat(w, "{},", 8<<20)
		},
		"strings":         sequence(`{"spec":{"containers":[{"args":[`, `"",`, "]}]}}"),
		"entries of maps": sequence(`{"metadata":{"labels":{`, `"%x":"",`, "}}}"),
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
					_ = cmp.Or(body(z), z.Close())
				})
				var err error
				took := allocated(func() { err = c.List(t.Context(), &corev1.PodList{}, client.Limit(pageSize)) }) // one response
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
	for _, contentType := range []string{
		"application/vnd.kubernetes.protobuf", "Application/VND.Kubernetes.Protobuf; json", "application/yaml", "APPLICATION/YAML; charset=json", "application/cbor-seq",
	} {
		accepted := ""
		c := clientOf(t, func(w http.ResponseWriter, r *http.Request) {
			accepted = r.Header.Get("Accept")
			w.Header().Set("Content-Type", contentType)
			fmt.Fprint(w, "k8s\x00")
		})
		for _, o := range []client.Object{&corev1.Pod{}, SecretMetadata("x")} {
			err := c.Get(t.Context(), client.ObjectKey{Namespace: "n", Name: "x"}, o)
			if err == nil || !strings.Contains(err.Error(), "although JSON was requested") {
				t.Errorf("%s, %T: %v", contentType, o, err)
			}
			if isBinary(accepted) || !strings.Contains(accepted, "application/json") {
				t.Errorf("%T: requested %q", o, accepted)
			}
		}
	}
	// Without a type, the client would decode what it would have requested without us.
	c := clientOf(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header()["Content-Type"] = nil
		fmt.Fprint(w, `{"kind":"Pod","apiVersion":"v1","metadata":{"name":"x"}}`)
	})
	var p corev1.Pod
	if err := c.Get(t.Context(), client.ObjectKey{Namespace: "n", Name: "x"}, &p); err != nil || p.Name != "x" {
		t.Errorf("without a type: %q, %v", p.Name, err)
	}
}

// Warnings in headers, which client-go parses even if nobody reads them, do not get to it.
func TestWarningsAreLeftOut(t *testing.T) {
	next := roundTripperFunc(func(*http.Request) (*http.Response, error) {
		return &http.Response{Header: http.Header{"Warning": {`299 - "x"`}}, Body: io.NopCloser(strings.NewReader("{}"))}, nil
	})
	resp, err := LimitTransport(next).RoundTrip(httptest.NewRequest(http.MethodGet, "/", nil))
	if err != nil || resp.Header.Get("Warning") != "" {
		t.Errorf("%v, %v", resp, err)
	}
}

type roundTripperFunc func(*http.Request) (*http.Response, error)

func (f roundTripperFunc) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// slowMapper is one whose API server does not tell its kinds.
type slowMapper struct {
	meta.RESTMapper
	asked chan bool
}

func (m slowMapper) RESTMapping(schema.GroupKind, ...string) (*meta.RESTMapping, error) {
	m.asked <- true
	select {}
}

// Reads end with their context, also while a server does not tell its kinds.
func TestKindsAreNotAwaited(t *testing.T) {
	m := slowMapper{asked: make(chan bool)}
	api, err := client.NewWithWatch(&rest.Config{}, client.Options{Mapper: m})
	if err != nil {
		t.Fatal(err)
	}
	list, one := &unstructured.UnstructuredList{}, &unstructured.Unstructured{}
	list.SetGroupVersionKind(schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "XList"})
	one.SetGroupVersionKind(schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "X"})
	for what, read := range map[string]func(context.Context) error{
		"list": func(ctx context.Context) error { return Paged(api).List(ctx, list) },
		"get":  func(ctx context.Context) error { return Paged(api).Get(ctx, client.ObjectKey{Name: "x"}, one) },
	} {
		ctx, cancel := context.WithCancelCause(t.Context())
		failed := make(chan error)
		go func() { failed <- read(ctx) }()
		<-m.asked
		cancel(errTooLarge)
		if err := <-failed; !errors.Is(err, errTooLarge) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// Each event of a watch is counted separately, also without line breaks between them.
func TestEventsAreBounded(t *testing.T) {
	for _, end := range []string{"\n", ""} {
		b := &limitedBody{ReadCloser: io.NopCloser(strings.NewReader(strings.Repeat(`{"object":[null,{"n":"n{"}]}`+end, 100_000))), isStream: true, maxHeap: maxHeap}
		if _, err := io.Copy(io.Discard, b); err != nil {
			t.Error(err)
		}
		b.ReadCloser = io.NopCloser(strings.NewReader("[" + strings.Repeat(`{},`, 1_000_000)))
		if _, err := io.Copy(io.Discard, b); err == nil {
			t.Error("an endless event was read")
		}
	}
}

// Values that look like quantities, and those that real API servers send, take nothing that matters.
func TestQuantitiesAreRead(t *testing.T) {
	long := strings.Repeat("9", 64)
	c := clientOf(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		items := strings.Repeat(`{"metadata":{"uid":"12345678-1234-4234-823e-123456789012","labels":{"hash":"12e4567","sum":"1e1234567","n":"`+long+`","capacity":"1e-2147483640"},"annotations":{"sizeLimit":"1e-2147483640","long":"`+strings.Repeat("1", 1<<10)+`"},"name":"1e-2147483640"},
			"spec":{"containers":[{"args":["1e-2147483640"],"env":[{"name":"capacity","value":"1e-2147483640"}],"resources":{"limits":{"cpu":"250m","memory":"1.5Gi","x":"1e-9","y":"12345678901234567890","z":1e3}}}]}},`, pageSize)
		fmt.Fprint(w, `{"items":[`+strings.TrimSuffix(items, ",")+`]}`)
	})
	var pods corev1.PodList
	if err := c.List(t.Context(), &pods); err != nil || len(pods.Items) != pageSize {
		t.Errorf("%d pods, %v", len(pods.Items), err)
	}
}

// The objects of a watch do not take more than a bounded amount of memory together. A response that is too large within one read counts
// before its end.
func TestWatchesAreBounded(t *testing.T) {
	ended := make(chan bool, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if !r.URL.Query().Has("watch") {
			fmt.Fprint(w, `{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[]}`)
			return
		}
		containers := strings.TrimSuffix(strings.Repeat("{},", 10_000), ",")
		for i := range 200 { // each takes more than 5 MiB
			_, err := fmt.Fprintf(w, `{"type":"ADDED","object":{"kind":"Pod","apiVersion":"v1","metadata":{"namespace":"n","name":"p%d","resourceVersion":"2"},"spec":{"containers":[%s]}}}`, i, containers)
			if err != nil {
				select {
				case ended <- true:
				default:
				}
				return
			}
		}
		select {
		case ended <- false:
		default:
		}
	}))
	t.Cleanup(server.Close)
	cfg := &rest.Config{Host: server.URL}
	goruntime.GC() // what earlier tests left would count as if it were needed
	limit := heap() + 128<<20
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { return limiter{next, limit} })
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Pod"), meta.RESTScopeNamespace)
	api, err := client.NewWithWatch(cfg, client.Options{Mapper: mapper})
	if err != nil {
		t.Fatal(err)
	}
	isBounded := false
	err = (&Cluster{Name: "a", Client: api}).Await(t.Context(), "wait", "", []client.ObjectList{&corev1.PodList{}}, func(Objects) (string, error) {
		select {
		case isBounded = <-ended:
			return "", nil
		default:
			return "it sends", nil
		}
	})
	if err != nil || !isBounded {
		t.Errorf("all of its objects were read; %v", err)
	}
	b := &limitedBody{ReadCloser: io.NopCloser(strings.NewReader(`{"object":{"status":{"capacity":{"cpu":"1e-2147483640"}}}}` + "\n")), isStream: true, maxHeap: maxHeap}
	if _, err := io.Copy(io.Discard, b); err == nil {
		t.Error("an event with a large quantity was read")
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
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Pod"), meta.RESTScopeNamespace)
	c := pagedClient{maxHeap: heap() + 256<<20, WithWatch: interceptor.NewClient(fake.NewClientBuilder().WithRESTMapper(mapper).Build(), interceptor.Funcs{
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

// All names are known by which the kinds that commands may decode have quantities.
func TestQuantitiesAreKnown(t *testing.T) {
	quantity := reflect.TypeFor[resource.Quantity]()
	inMaps, fields, seen := map[string]bool{}, map[string]bool{}, map[string]bool{}
	var walk func(of reflect.Type, key string, isElement bool)
	walk = func(of reflect.Type, key string, isElement bool) {
		id := fmt.Sprint(of.PkgPath(), of, "/", key, isElement)
		switch {
		case seen[id]:
			return
		case of == quantity && isElement:
			inMaps[key] = true
		case of.Kind() == reflect.Pointer:
			walk(of.Elem(), key, isElement)
		case of.Kind() == reflect.Slice || of.Kind() == reflect.Map:
			seen[id] = true
			walk(of.Elem(), key, true)
		case of.Kind() == reflect.Struct && of != quantity:
			seen[id] = true
			for i := range of.NumField() {
				f := of.Field(i)
				name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
				switch is := f.Type; {
				case name == "-":
				case is == quantity || is.Kind() == reflect.Pointer && is.Elem() == quantity:
					fields[key+"/"+name] = true
				case f.Anonymous && (name == "" || strings.Contains(options, "inline")):
					walk(is, key, isElement)
				default:
					walk(is, name, false)
				}
			}
		}
	}
	s := runtime.NewScheme()
	kit.NoError(t, errors.Join(clientgoscheme.AddToScheme(s), apiextensionsv1.AddToScheme(s)))
	for _, of := range s.AllKnownTypes() {
		walk(of, root, false)
	}
	for name := range inMaps {
		kit.ErrorIf(t, !slices.Contains(quantityMaps, name) || len(name) > longestName, "the map %s is not known", name)
	}
	for field := range fields {
		of, name, _ := strings.Cut(field, "/")
		kit.ErrorIf(t, !slices.Contains(quantityFields, field) && !slices.Contains(quantityMaps, of) || len(name) > longestName, "the field %s is not known", field)
	}
	kit.ErrorIf(t, len(inMaps) < 10 || len(fields) < 10, "only %d maps and %d fields were found", len(inMaps), len(fields))
}

// Objects that are too large for one page are read in smaller ones: anyone who may create Pods may create large ones.
func TestLargeObjectsAreRead(t *testing.T) {
	const total = 2*pageSize + 7
	text := strings.Repeat("a", maxResponse/perByte/pageSize)
	var limits []string
	c := clientOf(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		from, n := 0, 0
		_, _ = fmt.Sscan(r.URL.Query().Get("continue"), &from) // the first page has none
		kit.CheckNoError(t, kit.Err(fmt.Sscan(r.URL.Query().Get("limit"), &n)))
		limits = append(limits, r.URL.Query().Get("limit"))
		next := ""
		if from+n < total {
			next = fmt.Sprint(from + n)
		}
		fmt.Fprintf(w, `{"metadata":{"continue":%q},"items":[`, next)
		for i := from; i < min(from+n, total); i++ {
			large := ""
			if i >= pageSize { // from the second page
				large = text
			}
			fmt.Fprintf(w, `%s{"metadata":{"name":"p%d","annotations":{"x":"%s"}}}`, strings.Repeat(",", min(1, i-from)), i, large)
		}
		fmt.Fprint(w, "]}")
	})
	var pods corev1.PodList
	kit.NoError(t, c.List(t.Context(), &pods))
	kit.ErrorIf(t, len(pods.Items) != total || pods.Items[total-1].Name != fmt.Sprint("p", total-1), "%d pods", len(pods.Items))
	kit.Check(t, "sizes of the first pages", limits[:4], []string{"200", "200", "20", "20"})
}
