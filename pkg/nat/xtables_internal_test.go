package nat

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// builder makes tables as iptables does.
type builder struct {
	blob          []byte
	first, policy [xtHooks]uint32
}

func (b *builder) at() uint32 { return uint32(len(b.blob)) }

// rule appends a rule with the standard target.
func (b *builder) rule(verdict int32, change func(raw []byte)) uint32 {
	at := b.at()
	raw := make([]byte, xtEntryLen)
	raw = append(raw, xtExtension("", binary.NativeEndian.AppendUint64(nil, uint64(uint32(verdict))))...)
	binary.NativeEndian.PutUint16(raw[xtTargetAt:], xtEntryLen)
	binary.NativeEndian.PutUint16(raw[xtNextAt:], uint16(len(raw)))
	binary.NativeEndian.PutUint64(raw[xtCounters:], uint64(at)) // to be told from others
	if change != nil {
		change(raw)
	}
	b.blob = append(b.blob, raw...)
	return at
}

// header appends the header of a chain.
func (b *builder) header(name string) uint32 {
	at := b.at()
	raw := make([]byte, xtEntryLen)
	text := make([]byte, 32)
	copy(text, name)
	raw = append(raw, xtExtension(xtErrorTarget, text)...)
	binary.NativeEndian.PutUint16(raw[xtTargetAt:], xtEntryLen)
	binary.NativeEndian.PutUint16(raw[xtNextAt:], uint16(len(raw)))
	b.blob = append(b.blob, raw...)
	return at
}

const (
	filterHooks = 1<<1 | 1<<2 | 1<<3
	ruleLen     = xtEntryLen + xtStandardLen
)

// onTCP makes a rule conditional.
func onTCP(raw []byte) { raw[xtProtocol] = 6 }

func going(raw []byte) { raw[xtFlags] |= xtFlagGoto }

// sample has rules of FORWARD that accept, jump and count, in front of a policy,
// and a chain that is jumped to.
func sample(policy int32) *builder {
	b := &builder{}
	chain := uint32(6*ruleLen + xtEntryLen + xtHeaderLen + 32)
	b.first[1] = b.rule(int32(chain), onTCP)
	b.policy[1] = b.rule(xtVerdictAccept, nil)
	b.first[2] = b.rule(int32(chain), nil)
	b.rule(int32(b.at())+ruleLen, onTCP) // only counts
	b.policy[2] = b.rule(policy, nil)
	b.first[3] = b.at()
	b.policy[3] = b.rule(xtVerdictAccept, nil)
	b.header("chain")
	b.rule(xtVerdictAccept, onTCP)
	b.rule(xtVerdictReturn, nil)
	b.header("ERROR")
	return b
}

func (b *builder) table(t testing.TB) *xtTable {
	t.Helper()
	table, err := decodeXT(filterHooks, b.first, b.policy, b.blob)
	if err != nil {
		t.Fatal(err)
	}
	return table
}

func passing() []pass {
	return Node{
		OverlayGroup: 1, OverlayPrefix: "lq", OverlayPort: 6094, TunnelPort: 51840,
		Gateways: []NodeGateway{{Outer: netip.MustParseAddr("10.244.1.9"), Local: true}},
	}.passes()
}

func (r *replacement) table(t testing.TB) *xtTable {
	t.Helper()
	out, err := decodeXT(r.hooks, r.first, r.policy, r.blob)
	if err != nil {
		t.Fatalf("what was made cannot be read: %v", err)
	}
	if len(out.entries) != r.count || len(r.from) != r.count {
		t.Fatalf("%d entries, %d counted, %d have an origin", len(out.entries), r.count, len(r.from))
	}
	return out
}

func change(t testing.TB, table *xtTable, h hook, passes []pass) *xtTable {
	t.Helper()
	edit, err := table.plan(h, passes)
	if err != nil {
		t.Fatal(err)
	}
	if edit == nil {
		return table
	}
	r, err := table.apply(edit)
	if err != nil {
		t.Fatal(err)
	}
	return r.table(t)
}

func (t *xtTable) blob() (out []byte) {
	for _, e := range t.entries {
		out = append(out, e.raw...)
	}
	return out
}

func TestXTForward(t *testing.T) {
	before := sample(xtVerdictDrop).table(t)
	with := change(t, before, hookForward, passing())
	n := uint32(0)
	ours := at(hookForward, passing())
	for _, p := range ours {
		n += uint32(len(p.xtRule()))
	}
	// Behind the two rules of the chain.
	place := with.index[with.policy[hookForward]] - len(ours)
	for i, p := range ours {
		if e := with.entries[place+i]; e.comment() != p.comment() || !bytes.Equal(e.raw, p.xtRule()) {
			t.Errorf("entry %d is %q, want %q", place+i, e.comment(), p.comment())
		}
	}
	if with.first[2] != before.first[2] || with.policy[2] != before.policy[2]+n ||
		with.first[3] != before.first[3]+n || with.policy[3] != before.policy[3]+n || with.first[1] != before.first[1] {
		t.Errorf("hooks %v, %v; before %v, %v", with.first, with.policy, before.first, before.policy)
	}
	chain := uint32(6*ruleLen+xtEntryLen+xtHeaderLen+32) + n
	for _, at := range []uint32{with.first[1], with.first[2]} {
		if verdict, _ := with.entries[with.index[at]].verdict(); uint32(verdict) != chain {
			t.Errorf("the jump at %d leads to %d, want %d", at, verdict, chain)
		}
	}
	if target := with.entries[with.index[chain]-1]; target.targetName() != xtErrorTarget || cString(target.target()[xtHeaderLen:]) != "chain" {
		t.Errorf("what is jumped to is not the chain but follows %q", target.target())
	}
	// The rule that only counts goes on with ours.
	counting := with.entries[with.index[with.first[2]]+1]
	if verdict, _ := counting.verdict(); uint32(verdict) != counting.end() {
		t.Errorf("the rule that only counts leads to %d, want %d", verdict, counting.end())
	}
	if edit, err := with.plan(hookForward, passing()); edit != nil || err != nil {
		t.Errorf("once more: %+v, %v", edit, err)
	}
	after := change(t, with, hookForward, nil)
	if diff := cmp.Diff(before.blob(), after.blob()); diff != "" {
		t.Error(diff)
	}
	if after.first != before.first || after.policy != before.policy {
		t.Errorf("hooks %v, %v; before %v, %v", after.first, after.policy, before.first, before.policy)
	}
	// A table of which nothing is in the way.
	if edit, err := sample(xtVerdictAccept).table(t).plan(hookForward, passing()); edit != nil || err != nil {
		t.Errorf("where nothing drops: %+v, %v", edit, err)
	}
	// The rules come first in a chain without others.
	b := &builder{}
	b.policy[1] = b.rule(xtVerdictAccept, nil)
	b.first[2] = b.at()
	b.policy[2] = b.rule(xtVerdictDrop, nil)
	b.first[3] = b.at()
	b.policy[3] = b.rule(xtVerdictAccept, nil)
	b.header("ERROR")
	empty := b.table(t)
	filled := change(t, empty, hookForward, passing())
	if filled.first[2] != empty.first[2] || !isPass(filled.entries[filled.index[filled.first[2]]].comment()) {
		t.Errorf("the chain begins at %d, %q", filled.first[2], filled.entries[filled.index[filled.first[2]]].comment())
	}
	if again := change(t, filled, hookForward, nil); again.first != empty.first || !bytes.Equal(again.blob(), empty.blob()) {
		t.Errorf("hooks %v, before %v", again.first, empty.first)
	}
	// So they do in the first chain of the table.
	b.policy[1] = 0
	binary.NativeEndian.PutUint32(b.blob[xtEntryLen+xtHeaderLen:], 0xffffffff) // drop
	dropping := b.table(t)
	filled1 := change(t, dropping, hookInput, passing())
	if filled1.first[1] != 0 || !isPass(filled1.entries[0].comment()) {
		t.Errorf("the chain INPUT begins at %d, %q", filled1.first[1], filled1.entries[0].comment())
	}
	if again := change(t, filled1, hookInput, nil); again.first != dropping.first || !bytes.Equal(again.blob(), dropping.blob()) {
		t.Errorf("hooks %v, before %v", again.first, dropping.first)
	}
}

func TestXTInvalid(t *testing.T) {
	valid := sample(xtVerdictDrop)
	for name, damage := range map[string]func(b *builder){
		"short":             func(b *builder) { b.blob = b.blob[:len(b.blob)-8] },
		"target too early":  func(b *builder) { b.blob[xtTargetAt] = 8 },
		"target too late":   func(b *builder) { b.blob[xtTargetAt+1] = 8 },
		"next entry":        func(b *builder) { b.blob[xtNextAt] = 0 },
		"not aligned":       func(b *builder) { b.blob[xtNextAt]++ },
		"target's size":     func(b *builder) { b.blob[xtEntryLen] = 200 },
		"no verdict":        func(b *builder) { b.blob[xtEntryLen] = xtHeaderLen },
		"hook":              func(b *builder) { b.first[2] += 8 },
		"policy":            func(b *builder) { b.policy[2] += 8 },
		"policy before all": func(b *builder) { b.policy[2] = 0 },
	} {
		b := &builder{slices.Clone(valid.blob), valid.first, valid.policy}
		damage(b)
		if _, err := decodeXT(filterHooks, b.first, b.policy, b.blob); !errors.Is(err, errXT) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// A jump into nowhere.
	b := sample(xtVerdictDrop)
	binary.NativeEndian.PutUint32(b.blob[xtEntryLen+xtHeaderLen:], 12)
	table := b.table(t)
	edit, err := table.plan(hookForward, passing())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := table.apply(edit); !errors.Is(err, errXT) {
		t.Errorf("a jump into nowhere: %v", err)
	}
}

// FuzzXT: whatever the kernel gives, it is refused, or put in and taken out again
// without a trace.
func FuzzXT(f *testing.F) {
	for _, b := range []*builder{sample(xtVerdictDrop), sample(xtVerdictAccept)} {
		f.Add(b.blob, b.first[1], b.policy[1], b.first[2], b.policy[2], b.first[3], b.policy[3])
	}
	// One with our rules, moved to the front.
	b := &builder{}
	b.first[2] = b.at()
	for _, p := range passing() {
		b.blob = append(b.blob, p.xtRule()...)
	}
	b.rule(int32(b.at())+ruleLen, going)
	b.rule(xtVerdictDrop, onTCP)
	b.policy[2] = b.rule(xtVerdictDrop, nil)
	b.header("ERROR")
	f.Add(b.blob, b.first[2], b.policy[2], b.first[2], b.policy[2], b.first[2], b.policy[2])
	f.Fuzz(func(t *testing.T, blob []byte, f1, p1, f2, p2, f3, p3 uint32) {
		table, err := decodeXT(filterHooks, [xtHooks]uint32{1: f1, 2: f2, 3: f3}, [xtHooks]uint32{1: p1, 2: p2, 3: p3}, blob)
		if err != nil {
			return
		}
		if _, err := table.state(); err != nil {
			return
		}
		for _, h := range passHooks() {
			without := mayChange(t, table, h, nil)
			if without == nil {
				continue
			}
			with := mayChange(t, without, h, passing())
			if with == nil {
				continue
			}
			if edit, err := with.plan(h, passing()); err != nil || edit != nil {
				t.Errorf("%s: once more: %+v, %v", h.name(), edit, err)
			}
			again := change(t, with, h, nil)
			if !bytes.Equal(again.blob(), without.blob()) || again.policy != without.policy || again.first[h] != without.first[h] {
				t.Errorf("%s: a trace is left", h.name())
			}
		}
	})
}

// mayChange is nil if the table cannot be changed.
func mayChange(t *testing.T, table *xtTable, h hook, passes []pass) *xtTable {
	edit, err := table.plan(h, passes)
	if err != nil {
		return nil
	}
	if edit == nil {
		return table
	}
	r, err := table.apply(edit)
	if err != nil {
		return nil
	}
	return r.table(t)
}
