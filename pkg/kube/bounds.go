package kube

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	goruntime "runtime"
	"runtime/metrics"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/samber/lo"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// maxResponse limits the estimated memory for one response, or for one event of a watch, in bytes. A page of nodes takes
// about 70 MiB by the same estimate. maxHeap limits the memory for all that was read, also for all events of a watch. A
// cluster of 5,000 nodes and 20,000 pods takes less than a quarter of it.
const maxResponse, maxHeap = 256 << 20, 2 << 30

// pageSize is the number of objects in one response. If they are too large together, it is smallPage: no object is
// larger than 1.5 MiB in etcd.
const pageSize, smallPage = 200, 20

// perValue estimates the memory of a JSON object, array or null, in bytes. Each may become a Go struct as large as that
// of a Pod. An element of an object or array takes perElement. Of these, an entry of a map takes the most. perByte is how
// many bytes a byte takes while it is read and decoded.
const perValue, perElement, perByte = 1200, 128, 4

// perExponent is what a power of ten in a quantity takes, in bytes. Its time counts, too: 1e-1000000 takes 40 ms.
const perExponent = 64

var errTooLarge = errors.New("its response is too large")

// LimitTransport limits the memory that the response to a request may take. It counts after decompression, and by the
// decoded size, because two bytes of an empty object become a struct. Therefore it requests JSON only.
func LimitTransport(next http.RoundTripper) http.RoundTripper { return limiter{next, maxHeap} }

type limiter struct {
	next    http.RoundTripper
	maxHeap uint64
}

// RoundTrip implements http.RoundTripper.
func (l limiter) RoundTrip(req *http.Request) (*http.Response, error) {
	if accept := req.Header.Get("Accept"); isBinary(accept) {
		var rest []string
		for a := range strings.SplitSeq(accept, ",") {
			if strings.Contains(a, "json") {
				rest = append(rest, a)
			}
		}
		if len(rest) == 0 {
			rest = []string{"application/json"}
		}
		req = req.Clone(req.Context())
		req.Header.Set("Accept", strings.Join(rest, ","))
	}
	resp, err := l.next.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	// The client chooses the decoder by this media type. Without one, it decodes what it would have requested.
	contentType := resp.Header.Get("Content-Type")
	switch mediaType, _, _ := mime.ParseMediaType(contentType); {
	case isBinary(mediaType) || strings.Contains(mediaType, "yaml"):
		_ = resp.Body.Close()
		return nil, fmt.Errorf("the server answers with %s, although JSON was requested", contentType)
	case mediaType == "":
		resp.Header.Set("Content-Type", "application/json")
	}
	resp.Header.Del("Warning") // the client would parse megabytes of them, to ignore them
	isStream := req.URL.Query().Has("watch") || strings.HasSuffix(req.URL.Path, "/log")
	resp.Body = &limitedBody{ReadCloser: resp.Body, isStream: isStream, maxHeap: l.maxHeap}
	return resp, nil
}

func isBinary(mediaTypes string) bool {
	return strings.Contains(mediaTypes, "protobuf") || strings.Contains(mediaTypes, "cbor")
}

// limitedBody estimates the memory for the JSON values that are read through it.
type limitedBody struct {
	io.ReadCloser
	// isStream is set if the body is a sequence of values, each of which is counted separately.
	isStream bool
	maxHeap  uint64
	size     int64
	// containers are the names of the open objects and arrays. key is the last name, and text the start of the last string.
	containers []string
	key        string
	text       []byte
	// inString and escaped tell where the last byte was.
	inString, escaped bool
	// quantity is the value that is being read, if it may be a quantity.
	quantity quantity
}

// Read fails once there is too much.
func (b *limitedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	for _, c := range p[:n] {
		if b.count(c); b.size > maxResponse {
			return 0, errTooLarge
		}
	}
	if tooMuch := checkHeap(b.maxHeap); tooMuch != nil { // other responses take memory, too, and the earlier values of a stream
		return 0, tooMuch
	}
	return n, err
}

func (b *limitedBody) count(c byte) {
	b.size += perByte
	if c == '"' && !b.escaped || !b.inString && strings.IndexByte(",:[]{} \t\r\n", c) >= 0 {
		if b.quantity.digits > 0 && b.isQuantity() {
			b.size += b.quantity.cost()
		}
		b.quantity = quantity{}
	} else {
		b.quantity.add(c)
	}
	switch {
	case b.escaped:
		b.escaped = false
	case b.inString:
		b.escaped, b.inString = c == '\\', c != '"'
		if b.inString && len(b.text) <= longestName {
			b.text = append(b.text, c)
		}
	case c == '"':
		b.inString, b.text = true, b.text[:0]
	case c == ':':
		b.key = nameOf(b.text)
	case c == '{' || c == '[':
		b.containers = append(b.containers, b.key)
		b.size += perValue
	case c == 'n': // null
		b.size += perValue
	case c == ',':
		b.size += perElement
	case c == '}' || c == ']':
		if last := len(b.containers) - 1; last >= 0 {
			b.containers, b.key = b.containers[:last], b.containers[last]
		}
		if len(b.containers) == 0 && b.isStream {
			b.size = 0
		}
	case c == '\n' && len(b.containers) == 0 && b.isStream:
		b.size = 0
	}
}

const (
	// anyName is a name with an escape, which may stand for each name, and root the object of a response.
	anyName, root = "any", "root"
	longestName   = 24
)

// quantityMaps are the names of the maps and lists whose values Kubernetes parses as quantities, in any kind.
// quantityFields are other quantities, after the name of their object. Elsewhere users may write the same strings, in
// labels for example, and nothing parses them.
var (
	quantityMaps = strings.Fields("allocatable allocatedResources capacity consumedCapacity counters default defaultRequest hard limits max maxLimitRequestRatio min " +
		"overhead podFixed requests used validValues")
	quantityFields = strings.Fields("root/capacity root/maximumVolumeSize items/capacity items/maximumVolumeSize object/capacity object/maximumVolumeSize " +
		"current/averageValue current/value target/averageValue target/value emptyDir/sizeLimit resourceFieldRef/divisor scaleDown/tolerance scaleUp/tolerance " +
		"mapping/capacityMultiplier mapping/deviceMultiplier mapping/quantity requestPolicy/default validRange/max validRange/min validRange/step")
	knownNames = func() map[string]string {
		known := map[string]string{}
		for _, name := range quantityMaps {
			known[name] = name
		}
		for _, field := range quantityFields {
			of, name, _ := strings.Cut(field, "/")
			known[of], known[name] = of, name
		}
		return known
	}()
)

// nameOf returns a name that matters for quantities, else "".
func nameOf(text []byte) string {
	if bytes.IndexByte(text, '\\') >= 0 {
		return anyName
	}
	return knownNames[string(text)]
}

// isQuantity reports whether Kubernetes may parse the last value as a quantity.
func (b *limitedBody) isQuantity() bool {
	last := len(b.containers) - 1
	if last < 0 {
		return false
	}
	of := b.containers[last]
	isIn := func(i int) bool {
		return i >= 0 && (b.containers[i] == anyName || slices.Contains(quantityMaps, b.containers[i]))
	}
	if b.key == anyName || isIn(last) || isIn(last-1) { // a map may have objects with quantities
		return true
	}
	return slices.Contains(quantityFields, lo.Ternary(last == 0, root, of)+"/"+b.key)
}

// quantity counts the digits of a value that Kubernetes may parse as a quantity, such as "1e-9" (resource.ParseQuantity). It calculates with
// all of them, and divides by the power of ten of a negative exponent. So without a limit, a few bytes take hours.
type quantity struct {
	digits, exponent                 int64
	hasExponent, isNegative, isOther bool
}

func (q *quantity) add(c byte) {
	switch isDigit := c >= '0' && c <= '9'; {
	case q.isOther:
	case isDigit && q.hasExponent:
		q.exponent = q.exponent*10 + int64(c-'0')
	case isDigit:
		q.digits++
	case c == 'e' || c == 'E':
		q.hasExponent = true
	case (c == '-' || c == '+') && (q.digits == 0 || q.hasExponent && q.exponent == 0):
		q.isNegative = c == '-' && q.hasExponent
	default: // Kubernetes trims spaces, also those of Unicode
		isSuffix := q.digits > 0 && strings.ContainsRune("inumkKMGTP", rune(c))
		q.isOther = c != '.' && c != ' ' && c < utf8.RuneSelf && !isSuffix
	}
}

// cost returns what parsing takes, in bytes. The time of a long number grows with the square of its length.
func (q *quantity) cost() int64 {
	exponent := int64(int32(q.exponent)) // the parser ignores the other bits
	if q.isNegative {
		exponent = -exponent
	}
	switch {
	case q.isOther:
		return 0
	case exponent < 0:
		return q.digits*q.digits - perExponent*exponent
	case q.digits > 18: // others are never multiplied
		return q.digits*q.digits + perExponent*exponent
	}
	return 0
}

// Paged returns a client that reads lists in pages, and fails if they take too much memory. Its reads end with their context, also while they
// ask for a kind that is not known.
func Paged(c client.WithWatch) client.WithWatch { return pagedClient{c, maxHeap} }

type pagedClient struct {
	client.WithWatch
	maxHeap uint64
}

// Get implements [client.Reader].
func (p pagedClient) Get(ctx context.Context, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
	if err := p.findKind(ctx, obj); err != nil {
		return err
	}
	return p.WithWatch.Get(ctx, key, obj, opts...)
}

// findKind returns an error if ctx ends before the API server has told about a kind. The client's own requests for that ignore ctx.
func (p pagedClient) findKind(ctx context.Context, obj runtime.Object) error {
	kind, err := p.GroupVersionKindFor(obj)
	if err != nil {
		return err
	}
	found := make(chan error, 1)
	go func() {
		_, err := p.RESTMapper().RESTMapping(schema.GroupKind{Group: kind.Group, Kind: strings.TrimSuffix(kind.Kind, "List")}, kind.Version)
		found <- err
	}()
	select {
	case err = <-found:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// List implements [client.Reader].
func (p pagedClient) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	if err := p.findKind(ctx, list); err != nil {
		return err
	}
	o := (&client.ListOptions{}).ApplyOptions(opts)
	if o.AsListOptions().Limit > 0 { // the caller reads pages
		return errors.Join(p.WithWatch.List(ctx, list, opts...), checkHeap(p.maxHeap))
	}
	empty := list.DeepCopyObject().(client.ObjectList)
	size := pageSize
	read := func(page client.ObjectList, next string) error {
		err := p.WithWatch.List(ctx, page, slices.Concat(opts, []client.ListOption{client.Limit(size), client.Continue(next)})...)
		if errors.Is(err, errTooLarge) && size > smallPage {
			size = smallPage
			err = p.WithWatch.List(ctx, page, slices.Concat(opts, []client.ListOption{client.Limit(size), client.Continue(next)})...)
		}
		return err
	}
	err := read(list, "")
	if err != nil || list.GetContinue() == "" {
		return err
	}
	all, err := meta.ExtractList(list)
	for next := list.GetContinue(); next != "" && err == nil; {
		page := empty.DeepCopyObject().(client.ObjectList)
		if err = read(page, next); err != nil {
			return err
		}
		items, extractErr := meta.ExtractList(page)
		all, next = append(all, items...), page.GetContinue()
		err = errors.Join(extractErr, checkHeap(p.maxHeap))
	}
	if err != nil {
		return err
	}
	list.SetContinue("")
	list.SetRemainingItemCount(nil)
	return meta.SetList(list, all)
}

// checkHeap returns an error if this process uses too much memory.
func checkHeap(limit uint64) error {
	if heap() < limit {
		return nil
	}
	if goruntime.GC(); heap() < limit {
		return nil
	}
	return fmt.Errorf("%w: this command has read more than %d MiB", errTooLarge, limit>>20)
}

func heap() uint64 {
	sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}
