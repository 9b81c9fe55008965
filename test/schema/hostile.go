package schema

import (
	"context"
	"encoding/json"
	"flag"
	"maps"
	"math/rand/v2"
	"net/netip"
	"regexp/syntax"
	"runtime/metrics"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode"

	"golang.org/x/sys/unix"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apimachinery/pkg/runtime"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/test/kit"
)

// Seed is what tests that try hostile objects choose them by.
var Seed = flag.Uint64("seed", 0, "which hostile objects are tried; 0 for others each time")

// Hostile calls try with objects of a kind that an API server stores although nobody of good will
// would write them. They are made of a valid one: fields are missing, lists are empty, full, or
// have the same twice, texts are as long as they may be, or control a terminal, numbers are at
// their borders, ranges overlap or are of another address family. There are a few of them, or
// 10,000 in make attack. The first object is the valid one. Seed repeats them.
func Hostile(t testing.TB, few int, of client.Object, try func(obj map[string]any)) {
	t.Helper()
	seed := *Seed
	if seed == 0 {
		seed = kit.Seed()
	}
	count := few
	if kit.Full() {
		count = 10_000
	}
	t.Logf("-seed %d", seed)
	kinds := kit.Must(allKinds())(t)
	base := kit.Must(Unstructured(of))(t)
	m := &maker{kind: kinds[of.GetObjectKind().GroupVersionKind().Kind], rand: rand.New(rand.NewPCG(seed, 0)), base: base}
	start := time.Now()
	try(runtime.DeepCopyJSON(base))
	for range count {
		obj := kit.Must(m.next(t.Context()))(t)
		try(obj)
		if t.Failed() {
			t.Fatalf("the object is %.2000s", encoded(obj))
		}
	}
	t.Logf("%d of kind %s, %d were refused, %s", count, m.kind.Name, m.refused, time.Since(start))
}

// allKinds takes a second.
var allKinds = sync.OnceValues(func() (map[string]*Kind, error) { return Kinds(context.Background()) })

// Into reads what an API server has stored.
func Into[T any](t testing.TB, obj map[string]any) (out T) {
	t.Helper()
	err := json.Unmarshal(encoded(obj), &out)
	kit.FatalIf(t, err != nil, "it is stored, and not read: %v", err)
	return out
}

func encoded(obj any) []byte {
	raw, _ := json.Marshal(obj) // of what was JSON
	return raw
}

// Unstructured is an object as JSON has it.
func Unstructured(obj client.Object) (out map[string]any, err error) {
	raw, err := json.Marshal(obj)
	if err != nil {
		return nil, err
	}
	return out, utiljson.Unmarshal(raw, &out)
}

// NoControl fails the test if a text has characters that control a terminal, ends of lines
// apart.
func NoControl(t testing.TB, what, text string) {
	t.Helper()
	if i := strings.IndexFunc(text, func(r rune) bool { return r != '\n' && r != '\t' && !unicode.IsGraphic(r) }); i >= 0 {
		t.Errorf("%s: control characters in %.200q", what, text[max(0, i-20):])
	}
}

// Bound is what something may cost for the size of what it reads. The first object that it is
// called for is the measure.
type Bound struct {
	t    testing.TB
	what string
	base cost
	most cost
}

// cost is memory that is allocated, in bytes, and processor time.
type cost struct {
	bytes uint64
	cpu   time.Duration
}

// NewBound bounds what something costs, in a test.
func NewBound(t testing.TB, what string) *Bound {
	b := &Bound{t: t, what: what}
	t.Cleanup(func() {
		t.Logf("%s: at most %d kB and %s, for a valid object %d kB and %s", what, b.most.bytes/1024, b.most.cpu, b.base.bytes/1024, b.base.cpu)
	})
	return b
}

// Of does something with an object. The test fails if that costs more than ten times what the
// first object cost, and a little for each byte more. It is done again where it seems so, as
// others may have taken some of that.
func (b *Bound) Of(obj map[string]any, do func()) {
	b.t.Helper()
	const (
		attempts = 4
		times    = 10
		bytes    = 500
		cpu      = 2 * time.Microsecond
	)
	size := len(encoded(obj))
	allowed := cost{times*b.base.bytes + uint64(bytes*size), times*b.base.cpu + 20*time.Millisecond + cpu*time.Duration(size)}
	var took cost
	for range attempts {
		before := spent()
		do()
		after := spent()
		took = cost{after.bytes - before.bytes, after.cpu - before.cpu}
		if b.base == (cost{}) {
			b.base = took
			return
		}
		if took.bytes <= allowed.bytes && took.cpu <= allowed.cpu {
			b.most = cost{max(b.most.bytes, took.bytes), max(b.most.cpu, took.cpu)}
			return
		}
	}
	b.t.Errorf("%s: an object of %d bytes costs %d kB and %s, the first one %d kB and %s", b.what, size, took.bytes/1024, took.cpu, b.base.bytes/1024, b.base.cpu)
}

// spent is what this process has had.
func spent() cost {
	sample := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(sample)
	var usage unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &usage) // it fails for wrong arguments only
	return cost{sample[0].Value.Uint64(), time.Duration(usage.Utime.Nano() + usage.Stime.Nano())}
}

// maker makes hostile objects, each of the one before.
type maker struct {
	kind       *Kind
	rand       *rand.Rand
	base, last map[string]any
	made       int
	refused    int
	// prefixes and addrs are those of the last object. Most ranges of one change have the
	// same length, as rules often ask for that.
	prefixes []netip.Prefix
	addrs    []netip.Addr
	bits     int
	// filled says that a list is full: all that follow would be large, too.
	filled bool
}

// next returns one that is stored.
func (m *maker) next(ctx context.Context) (map[string]any, error) {
	const lineage = 50
	const oftenFull = 16
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if m.made%lineage == 0 || m.filled {
			m.last, m.filled = m.base, false
		}
		obj := runtime.DeepCopyJSON(m.last)
		m.prefixes, m.addrs = nil, nil
		m.collect(obj)
		if m.filled = m.rand.IntN(oftenFull) == 0; m.filled {
			m.fill(m.kind.structural, obj)
		}
		for range 1 + m.rand.IntN(4) {
			m.bits = []int{8, 16, 17, 24, 32}[m.rand.IntN(5)]
			for _, part := range []string{"spec", "status"} {
				if s, ok := m.kind.structural.Properties[part]; ok && m.rand.IntN(2) == 0 {
					obj[part] = m.change(&s, obj[part])
				}
			}
		}
		// As if it had been created so: rules about changes do not apply.
		got, err := m.kind.Store(ctx, encoded(obj), obj)
		if err != nil {
			m.refused++
			continue
		}
		m.made++
		m.last = got
		return got, nil
	}
}

// collect notes the addresses and ranges of a value.
func (m *maker) collect(v any) {
	switch v := v.(type) {
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(v)) {
			m.collect(v[name])
		}
	case []any:
		for _, item := range v[:min(len(v), 20)] {
			m.collect(item)
		}
	case string:
		if p, err := netip.ParsePrefix(v); err == nil {
			m.prefixes = append(m.prefixes, p)
		} else if a, err := netip.ParseAddr(v); err == nil {
			m.addrs = append(m.addrs, a)
		}
	}
}

// change returns another value for a field.
func (m *maker) change(s *structuralschema.Structural, v any) any {
	switch v := v.(type) {
	case map[string]any:
		if s.AdditionalProperties != nil {
			return m.value(s)
		}
		name := pick(m.rand, slices.Sorted(maps.Keys(s.Properties)))
		child := s.Properties[name]
		switch m.rand.IntN(8) {
		case 0:
			delete(v, name)
		case 1:
			v[name] = m.value(&child)
		default:
			v[name] = m.change(&child, v[name])
		}
		return v
	case []any:
		i := m.rand.IntN(len(v) + 1)
		switch n := m.rand.IntN(16); {
		case n == 0:
			return []any{}
		case n == 1 && i < len(v):
			v = slices.Delete(v, i, i+1)
		case n < 5 && i < len(v):
			v = append(v, runtime.DeepCopyJSONValue(v[i])) // twice
		case n < 8 || i == len(v):
			v = append(v, m.value(s.Items))
		default:
			v[i] = m.change(s.Items, v[i])
		}
		return v
	}
	return m.value(s)
}

// fill makes one of a value's lists as long as it may be.
func (m *maker) fill(s *structuralschema.Structural, v map[string]any) {
	var lists []string
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		child := s.Properties[name]
		if _, isList := v[name].([]any); isList || v[name] != nil && len(child.Properties) > 0 {
			lists = append(lists, name)
		}
	}
	if len(lists) == 0 {
		return
	}
	name := pick(m.rand, lists)
	child := s.Properties[name]
	switch below := v[name].(type) {
	case map[string]any:
		m.fill(&child, below)
	case []any:
		if len(below) > 0 && child.Items.Type == "object" && m.rand.IntN(2) == 0 {
			if item, ok := below[0].(map[string]any); ok {
				m.fill(child.Items, item)
				return
			}
		}
		for most := items(&child); len(below) < most; {
			below = append(below, m.value(child.Items))
		}
		v[name] = below
	}
}

// items is how many a list may have.
func items(s *structuralschema.Structural) int {
	const most = 4096
	if s.ValueValidation != nil && s.ValueValidation.MaxItems != nil {
		return int(min(*s.ValueValidation.MaxItems, most))
	}
	return most
}

// value makes a value for a field.
func (m *maker) value(s *structuralschema.Structural) any {
	check := s.ValueValidation
	if check == nil {
		check = &structuralschema.ValueValidation{}
	}
	switch s.Type {
	case "object":
		out := map[string]any{}
		for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
			if child := s.Properties[name]; slices.Contains(check.Required, name) || m.rand.IntN(10) < 7 {
				out[name] = m.value(&child)
			}
		}
		if every := s.AdditionalProperties; every != nil {
			for range pick(m.rand, []int64{0, 1, *check.MaxProperties}) {
				out[m.text(every.Structural, &structuralschema.ValueValidation{MaxLength: new(int64(300))})+strconv.Itoa(len(out))] = m.value(every.Structural)
			}
		}
		return out
	case "array":
		out := []any{}
		for range m.rand.IntN(4) {
			out = append(out, m.value(s.Items))
		}
		return out
	case "boolean":
		return m.rand.IntN(2) == 0
	case "integer":
		least, most := int64(-1)<<31, int64(1)<<31-1
		if check.Minimum != nil {
			least = int64(*check.Minimum)
		}
		if check.Maximum != nil {
			most = int64(*check.Maximum)
		}
		return pick(m.rand, []int64{least, most, least + m.rand.Int64N(most-least+1)})
	}
	return m.text(s, check)
}

// text makes a value for a field with text, by the rules that it has.
func (m *maker) text(s *structuralschema.Structural, check *structuralschema.ValueValidation) string {
	var rules strings.Builder
	for _, r := range s.XValidations {
		rules.WriteString(r.Rule)
	}
	is := func(what string) bool { return strings.Contains(rules.String(), what) }
	switch {
	case len(check.Enum) > 0:
		value, _ := pick(m.rand, check.Enum).Object.(string)
		return value
	case is("'/18'"):
		return m.prefix(18).String()
	case is("'/19'"):
		return m.prefix(19).String()
	case is("isCIDR"):
		return m.prefix(m.bits).String()
	case is("isGlobalUnicast"): // a list of them could hardly be full otherwise
		a := m.addr()
		for !a.IsGlobalUnicast() {
			a = m.addr()
		}
		return a.String()
	case is("isIP"):
		return m.addr().String()
	case check.Format == "date-time":
		return pick(m.rand, []string{"0001-01-01T00:00:00Z", "1970-01-01T00:00:00Z", "9998-12-31T23:59:59Z", "2026-01-01T00:00:00+23:59", "2026-01-01T00:00:00.123456789Z"})
	}
	most := 64
	if check.MaxLength != nil {
		most = int(*check.MaxLength)
	}
	if check.Pattern != "" {
		if re, err := syntax.Parse(check.Pattern, syntax.Perl); err == nil {
			var b strings.Builder
			m.matching(&b, re, min(pick(m.rand, []int{1, 20, most}), most))
			return b.String()
		}
	}
	if m.rand.IntN(3) == 0 {
		return strings.Repeat(pick(m.rand, []string{"a", "ü", "\U0001f4a5"}), most)
	}
	return strings.Repeat("\x1b]0;title\a\u009b2J\r\u202e\x7f\nb -> a: Connected\ty\x00 ", 1+m.rand.IntN(3))
}

// matching writes a text that an expression matches, of so many characters or somewhat
// more.
func (m *maker) matching(b *strings.Builder, re *syntax.Regexp, length int) {
	switch re.Op {
	case syntax.OpLiteral:
		b.WriteString(string(re.Rune))
	case syntax.OpCharClass:
		i := 2 * m.rand.IntN(len(re.Rune)/2)
		b.WriteRune(re.Rune[i] + m.rand.Int32N(re.Rune[i+1]-re.Rune[i]+1))
	case syntax.OpAlternate:
		m.matching(b, pick(m.rand, re.Sub), length)
	case syntax.OpConcat, syntax.OpCapture:
		for _, sub := range re.Sub {
			m.matching(b, sub, length)
		}
	case syntax.OpStar, syntax.OpPlus, syntax.OpQuest, syntax.OpRepeat:
		least, most := re.Min, re.Max
		if re.Op == syntax.OpPlus {
			least = 1
		}
		if re.Op == syntax.OpQuest {
			most = 1
		} else if re.Op != syntax.OpRepeat || most < 0 {
			most = max(least, length-b.Len())
		}
		for range least + m.rand.IntN(most-least+1) {
			m.matching(b, re.Sub[0], length)
		}
	}
}

// prefix is one that overlaps with another one of the object, or that leads far.
func (m *maker) prefix(bits int) netip.Prefix {
	a := pick(m.rand, []netip.Addr{netip.MustParseAddr("0.0.0.0"), netip.MustParseAddr("128.0.0.0"), netip.MustParseAddr("255.255.255.255"), netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("fd00::"), netip.MustParseAddr("::")})
	if len(m.prefixes) > 0 && m.rand.IntN(8) > 0 {
		p := pick(m.rand, m.prefixes)
		if a = p.Addr(); m.rand.IntN(4) == 0 && a.BitLen() == 32 {
			bits = p.Bits()
		}
	}
	if a.Is6() {
		bits += 96 // as many addresses as of IPv4
	}
	p, _ := a.Prefix(bits)
	return p
}

// addr is one of a range of the object, or an odd one.
func (m *maker) addr() netip.Addr {
	switch m.rand.IntN(6) {
	case 0:
		return netip.MustParseAddr(pick(m.rand, []string{"0.0.0.0", "255.255.255.255", "127.0.0.1", "169.254.169.254", "224.0.0.1", "::", "fe80::1", "ff02::1", "fd00::1"}))
	case 1:
		if len(m.addrs) > 0 {
			return pick(m.rand, m.addrs)
		}
	}
	if len(m.prefixes) == 0 {
		return netip.MustParseAddr("192.0.2.1")
	}
	p := pick(m.rand, m.prefixes)
	b := p.Addr().AsSlice()
	for i := range b {
		for bit := range 8 {
			if 8*i+bit >= p.Bits() && m.rand.IntN(2) == 0 {
				b[i] |= 0x80 >> bit
			}
		}
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

func pick[T any](r *rand.Rand, of []T) T { return of[r.IntN(len(of))] }
