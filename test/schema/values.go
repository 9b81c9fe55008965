package schema

import (
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"

	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apimachinery/pkg/runtime"
)

// Path leads to a field of an object: names, and 0 for the first item of a list.
type Path []any

// Field is one of an object's, a list or an object included.
type Field struct {
	Path Path
	// Text says that it holds a string.
	Text bool
}

// Fields are all of them. Metadata has the name only.
func (k *Kind) Fields() []Field {
	return append(fields(k.structural, nil), Field{Path{"metadata", "name"}, true})
}

func fields(s *structuralschema.Structural, at Path) (out []Field) {
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		if len(at) == 0 && name != "spec" && name != "status" {
			continue
		}
		p := append(slices.Clone(at), name)
		child := s.Properties[name]
		out = append(append(out, Field{p, child.Type == "string"}), fields(&child, p)...)
	}
	if s.Items != nil {
		p := append(slices.Clone(at), 0)
		out = append(append(out, Field{p, s.Items.Type == "string"}), fields(s.Items, p)...)
	}
	return out
}

// With returns a copy of an object with another value at a path, and false if the object has
// nothing where it leads.
func With(obj map[string]any, at Path, value any) (map[string]any, bool) {
	out := runtime.DeepCopyJSON(obj)
	var in any = out
	for i, step := range at {
		last := i == len(at)-1
		switch step := step.(type) {
		case string:
			m, ok := in.(map[string]any)
			if !ok {
				return nil, false
			}
			if last {
				m[step] = value
			}
			in = m[step]
		case int:
			l, ok := in.([]any)
			if !ok || len(l) <= step {
				return nil, false
			}
			if last {
				l[step] = value
			}
			in = l[step]
		}
	}
	return out, true
}

// Odd are values of all types and their borders. For a field with text there are also strings that
// one reader takes for what it wants and another does not.
func (f Field) Odd() []any {
	out := []any{
		"", "x", "1", "true", slices.Repeat([]any{"10.0.0.1"}, 20), slices.Repeat([]any{map[string]any{}}, 5),
		nil, true, false,
		[]any{},
		[]any{nil},
		[]any{""},
		[]any{map[string]any{}},
		map[string]any{},
		map[string]any{"a": int64(1)},
		int64(0), int64(-1), int64(1), int64(4), int64(100), int64(512), int64(70000), int64(1)<<31 - 1, int64(1) << 31, -(int64(1) << 31) - 1, int64(3000000000),
		int64(1) << 53, int64(math.MaxInt64), int64(math.MinInt64), 1e20, -1e20, 1.5, 3.0, 1e3, 1e-9, 9.3e18,
	}
	if !f.Text {
		return out
	}
	for _, s := range []string{
		" ", "null", "10.244.0.1", "1.2.3.4.5", "...", ":::", "00", "1.2.3", "010.0.0.1", "1.2.3.4 ", "0x1.2.3.4", "10.80.0.1", "10.70.31.254", "10.60.32.1",
		"::", "::1", "fd00::1", "FD00::1", "fd00:0:0:0:0:0:0:1", "::ffff:10.0.0.1", "::ffff:a00:1", "::10.0.0.1", "fe80::1", "fe80::1%eth0", "fd00::1%x\nallowed_ip=0.0.0.0/0",
		"127.0.0.1", "0.0.0.0", "255.255.255.255", "169.254.169.254", "224.0.0.1", "ff02::1", "٣.1.1.1",
		"10.244.0.0/16", "10.30.0.0/16", "10.0.0.1/8", "0.0.0.0/0", "10.0.0.0/33", "10.0.0.0/08", "10.0.0.0/-1", "10.80.0.0/19", "10.81.0.0/19", "10.60.0.0/18", "10.70.0.0/18", "fd00::/115", "fd00::/114", "fd00::/64",
		"::/0", "::ffff:0.0.0.0/96", "::ffff:10.0.0.0/104", "fe80::%eth0/64", "10.0.0.0/8/8", "/8", "10.0.0.0/",
		"2026-01-01T00:00:00Z", "2026-01-01t00:00:00z", "2026-01-01T00:00:00z", "2026-01-01T00:00:00.5Z", "2026-01-01T00:00:00x5Z", "2026-01-01T00:00:00,5Z", "2026-01-01T00:00:00+99:99", "2026-01-01T00:00:00+01:00",
		"2026-01-01T00:00:00ZTx", "2026-01-01T24:00:00Z", "2026-01-01T23:59:60Z", "2026-02-30T00:00:00Z", "0000-01-01T00:00:00Z", "9999-12-31T23:59:59-23:59", "2026-01-01T00:00:00", "2026-01-01 00:00:00Z", "99999-01-01T00:00:00Z",
		"192.0.2.1:51840", "192.0.2.1:0", "192.0.2.1:99999", "192.0.2.1:051840", "192.0.2.1", "host.example:1", "ho_st:1", "a b:1", "[fd00::1]:1", "[FD00::1]:1", "fd00::1:1", "[fe80::1%eth0]:1",
		"[fe80::1%x\nallowed_ip=0.0.0.0/0]:51840", "host:1\nallowed_ip=0.0.0.0/0", "[::ffff:192.0.2.1]:1", ":1",
		"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAB=", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", "????????????????????????????????????????????",
		"Geneve", "VXLAN", "Server", "Client", "Kernel", "UserSpace", "True", "arn:aws:eks:eu-west-1:1:cluster/x", "user@kind-a", "/home/u/my kubeconfig#kind-ü", "a\u2028b", "a\x00b", "a\nb", "a\tb", "\x1b[31mred", "a\u200bb", "\u202eb", "\ufffd",
		"name.with.dots", "Name", "-a", "a-", "a/b", "../a",
	} {
		out = append(out, s)
	}
	for _, n := range []int{40, 41, 44, 45, 63, 64, 253, 254, 259, 260, 1024, 4096, 4097, 40000} {
		out = append(out, strings.Repeat("a", n))
	}
	return append(out, strings.Repeat("ü", 4096))
}

// alphabets are what random strings are made of.
var alphabets = []string{"0123456789.", "0123456789abcdef:.", "0123456789./", "0123456789-:TtZz.+", "0123456789abcdef:.%[]", "abcXYZ09+/=", "az-.09", " !az\n\t\x1b\u2028ü"}

// Random is a random string, or number.
func Random(r *rand.Rand) any {
	switch r.IntN(8) {
	case 0:
		return r.Int64() >> r.IntN(63)
	case 1:
		return -(r.Int64() >> r.IntN(63))
	}
	letters := []rune(alphabets[r.IntN(len(alphabets))])
	var b strings.Builder
	for range 1 + r.IntN(48) {
		b.WriteRune(letters[r.IntN(len(letters))])
	}
	return b.String()
}
