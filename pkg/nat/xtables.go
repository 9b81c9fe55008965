package nat

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// The tables of iptables-legacy, as the kernel gives and takes them
// (linux/netfilter_ipv4/ip_tables.h, linux/netfilter/x_tables.h): one blob of
// entries, in which chains follow each other. Numbers have the machine's byte
// order; this is the layout of machines with 64 bits.
const (
	xtNameLen  = 32
	xtHooks    = 5
	xtAlign    = 8
	xtEntryLen = 112
	// xtHeaderLen is that of a match and of a target.
	xtHeaderLen   = 32
	xtExtNameLen  = 29
	xtStandardLen = xtHeaderLen + 8
	xtCountersLen = 16

	// Offsets in an entry.
	xtIPLen       = 84
	xtSource      = 0
	xtDestination = 4
	xtSourceMask  = 8
	xtDestMask    = 12
	xtInName      = 16
	xtOutName     = 32
	xtInMask      = 48
	xtOutMask     = 64
	xtProtocol    = 80
	xtFlags       = 82
	xtTargetAt    = 88
	xtNextAt      = 90
	xtCounters    = 96

	xtFlagGoto = 0x02 // IPT_F_GOTO

	xtErrorTarget = "ERROR"

	xtCommentLen = 256
	xtUDPLen     = 16

	// Verdicts of the standard target; those that are not negative are offsets to
	// go on at.
	xtVerdictDrop   = -1 - 0 // -NF_DROP - 1
	xtVerdictAccept = -1 - 1 // -NF_ACCEPT - 1
	xtVerdictReturn = -1 - 4 // XT_RETURN
)

// xtTable is a table of iptables-legacy.
type xtTable struct {
	hooks uint32
	// first are the offsets of the built-in chains' first entries, policy those of
	// their last.
	first, policy [xtHooks]uint32
	entries       []xtEntry
	// index finds an entry by its offset.
	index map[uint32]int
}

// xtEntry is a rule, a policy, or the header of a chain.
type xtEntry struct {
	offset uint32
	// raw includes matches and target.
	raw []byte
}

var errXT = errors.New("the kernel's table of iptables-legacy is not as expected")

// decodeXT reads the entries of a table.
func decodeXT(hooks uint32, first, policy [xtHooks]uint32, blob []byte) (*xtTable, error) {
	t := &xtTable{hooks: hooks, first: first, policy: policy, index: map[uint32]int{}}
	if len(blob) > math.MaxInt32 {
		return nil, fmt.Errorf("%w: %d bytes", errXT, len(blob))
	}
	for at := 0; at < len(blob); {
		rest := blob[at:]
		if len(rest) < xtEntryLen {
			return nil, fmt.Errorf("%w: %d bytes after the last entry", errXT, len(rest))
		}
		target, next := int(native16(rest[xtTargetAt:])), int(native16(rest[xtNextAt:]))
		if target < xtEntryLen || next < target+xtHeaderLen || next > len(rest) || next%xtAlign != 0 {
			return nil, fmt.Errorf("%w: entry at %d with target at %d, next at %d", errXT, at, target, next)
		}
		e := xtEntry{uint32(at), rest[:next]}
		if err := e.check(target); err != nil {
			return nil, err
		}
		t.index[e.offset] = len(t.entries)
		t.entries = append(t.entries, e)
		at += next
	}
	for h := range xtHooks {
		if hooks&(1<<h) == 0 {
			continue
		}
		first, ok := t.index[t.first[h]]
		last, ok2 := t.index[t.policy[h]]
		if !ok || !ok2 || last < first {
			return nil, fmt.Errorf("%w: hook %d from %d to %d", errXT, h, t.first[h], t.policy[h])
		}
	}
	return t, nil
}

// check looks at matches and target of an entry.
func (e xtEntry) check(target int) error {
	at := xtEntryLen
	for at < target {
		if target-at < xtHeaderLen {
			return fmt.Errorf("%w: entry at %d: match at %d", errXT, e.offset, at)
		}
		size := int(native16(e.raw[at:]))
		if size < xtHeaderLen || size > target-at {
			return fmt.Errorf("%w: entry at %d: match of %d bytes", errXT, e.offset, size)
		}
		at += size
	}
	size := int(native16(e.raw[target:]))
	if size < xtHeaderLen || size > len(e.raw)-target || e.targetName() == "" && size < xtStandardLen-4 {
		return fmt.Errorf("%w: entry at %d: target of %d bytes", errXT, e.offset, size)
	}
	return nil
}

func native16(b []byte) uint16 { return binary.NativeEndian.Uint16(b) }
func native32(b []byte) uint32 { return binary.NativeEndian.Uint32(b) }

func (e xtEntry) target() []byte { return e.raw[native16(e.raw[xtTargetAt:]):] }

func (e xtEntry) end() uint32 { return e.offset + uint32(len(e.raw)) }

// targetName is empty for the standard target.
func (e xtEntry) targetName() string { return cString(e.target()[2 : 2+xtExtNameLen]) }

// verdict is that of the standard target.
func (e xtEntry) verdict() (verdict int32, ok bool) {
	t := e.target()
	if e.targetName() != "" {
		return 0, false
	}
	return int32(native32(t[xtHeaderLen:])), true
}

func cString(b []byte) string {
	s, _, _ := bytes.Cut(b, []byte{0})
	return string(s)
}

// comment is the rule's, of the match of that name (linux/netfilter/xt_comment.h).
func (e xtEntry) comment() string {
	target := int(native16(e.raw[xtTargetAt:]))
	for at := xtEntryLen; at < target; {
		size := int(native16(e.raw[at:]))
		if cString(e.raw[at+2:at+2+xtExtNameLen]) == "comment" {
			return cString(e.raw[at+xtHeaderLen : at+size])
		}
		at += size
	}
	return ""
}

// unconditional says that a rule is for every packet.
func (e xtEntry) unconditional() bool {
	target := int(native16(e.raw[xtTargetAt:]))
	for at := xtEntryLen; at < target; {
		if cString(e.raw[at+2:at+2+xtExtNameLen]) != "comment" {
			return false
		}
		at += int(native16(e.raw[at:]))
	}
	for i, b := range e.raw[:xtIPLen] {
		// Of an interface's name the mask counts: `-i +` is a name without.
		name := i >= xtInName && i < xtInMask
		if b != 0 && i != xtFlags && !name {
			return false
		}
	}
	return true
}

// step says what a rule does with every packet. Chains are named by the offset
// of their first rule.
func (e xtEntry) step() step {
	if !e.unconditional() {
		return step{}
	}
	verdict, standard := e.verdict()
	switch {
	case !standard && e.targetName() == "REJECT":
		return step{kind: drops}
	case !standard:
		return step{}
	case verdict == xtVerdictDrop:
		return step{kind: drops}
	case verdict == xtVerdictAccept:
		return step{kind: accepts}
	case verdict == xtVerdictReturn:
		return step{kind: returns}
	case verdict < 0 || uint32(verdict) == e.end():
		return step{} // to user space, or a rule that only counts
	case e.raw[xtFlags]&xtFlagGoto != 0:
		return step{goes, fmt.Sprint(verdict)}
	default:
		return step{jumps, fmt.Sprint(verdict)}
	}
}

// chain returns the rules of a chain of a user: from the offset to the next
// chain's header.
func (t *xtTable) chain(name string) ([]step, error) {
	var offset uint32
	if _, err := fmt.Sscan(name, &offset); err != nil {
		return nil, err
	}
	i, ok := t.index[offset]
	if !ok {
		return nil, fmt.Errorf("%w: jump to %d", errXT, offset)
	}
	var out []step
	for ; i < len(t.entries) && t.entries[i].targetName() != xtErrorTarget; i++ {
		out = append(out, t.entries[i].step())
	}
	return out, nil
}

// xtEdit is what has to change in a hook's chain: the entries to take out, and
// those to put in before an entry.
type xtEdit struct {
	hook   hook
	remove map[int]bool
	insert [][]byte
	before int
}

// plan says what makes a hook's chain right; nil if it is.
func (t *xtTable) plan(h hook, passes []pass) (*xtEdit, error) {
	if t.hooks&(1<<h) == 0 {
		return nil, nil
	}
	first, last := t.index[t.first[h]], t.index[t.policy[h]]
	edit := &xtEdit{hook: h, remove: map[int]bool{}}
	var have []string
	var foreign []int
	for i := first; i < last; i++ {
		if isPass(t.entries[i].comment()) {
			edit.remove[i] = true
		} else {
			foreign = append(foreign, i)
		}
	}
	steps := make([]step, len(foreign))
	for i, f := range foreign {
		steps[i] = t.entries[f].step()
	}
	policy := accepts
	if t.entries[last].step().kind == drops {
		policy = drops
	}
	tail, verdict, err := newRuleset(t.chain).end(steps, policy)
	if err != nil {
		return nil, err
	}
	edit.before = last
	if tail < len(foreign) {
		edit.before = foreign[tail]
	}
	if verdict == drops {
		for _, p := range at(h, passes) {
			edit.insert = append(edit.insert, p.xtRule())
		}
	}
	// Ours are right if they are what stands just before that entry.
	start := edit.before
	for start > first && edit.remove[start-1] {
		start--
	}
	for i := start; i < edit.before; i++ {
		have = append(have, string(t.entries[i].withoutCounters()))
	}
	same := len(have) == len(edit.remove) && slices.EqualFunc(have, edit.insert, func(a string, b []byte) bool { return a == string(b) })
	if same {
		return nil, nil
	}
	return edit, nil
}

// withoutCounters is the entry as it was given to the kernel.
func (e xtEntry) withoutCounters() []byte {
	out := slices.Clone(e.raw)
	// nfcache, and from there: comefrom and counters.
	clear(out[xtIPLen:xtTargetAt])
	clear(out[xtNextAt+2 : xtEntryLen])
	return out
}

// replacement is a table for the kernel, and where its counters come from: the
// place of an entry in the table before, or -1.
type replacement struct {
	hooks         uint32
	first, policy [xtHooks]uint32
	count         int
	blob          []byte
	from          []int
}

// apply makes an edited table. All offsets in it follow: of chains, of jumps,
// and of rules that only count, which jump to the next one.
func (t *xtTable) apply(edit *xtEdit) (*replacement, error) {
	r := &replacement{hooks: t.hooks}
	moved := make([]uint32, len(t.entries))
	var inserted uint32
	for i, e := range t.entries {
		if i == edit.before {
			inserted = uint32(len(r.blob))
			for _, raw := range edit.insert {
				r.blob, r.from = append(r.blob, raw...), append(r.from, -1)
			}
		}
		// What is taken out leads on to what comes next.
		moved[i] = uint32(len(r.blob))
		if !edit.remove[i] {
			r.blob, r.from = append(r.blob, e.raw...), append(r.from, i)
		}
	}
	r.count = len(r.from)
	if len(r.blob) > math.MaxInt32 {
		return nil, fmt.Errorf("%w: it would have %d bytes", errXT, len(r.blob))
	}
	for i, e := range t.entries {
		verdict, ok := e.verdict()
		if edit.remove[i] || !ok || verdict < 0 {
			continue
		}
		to := moved[i] + uint32(len(e.raw))
		if uint32(verdict) != e.end() || e.raw[xtFlags]&xtFlagGoto != 0 {
			target, ok := t.index[uint32(verdict)]
			if !ok {
				return nil, fmt.Errorf("%w: jump to %d", errXT, verdict)
			}
			to = moved[target]
		}
		at := moved[i] + uint32(native16(e.raw[xtTargetAt:])) + xtHeaderLen
		binary.NativeEndian.PutUint32(r.blob[at:], to)
	}
	for h := range xtHooks {
		if t.hooks&(1<<h) == 0 {
			// The kernel does not look at these.
			r.first[h], r.policy[h] = t.first[h], t.policy[h]
			continue
		}
		first := t.index[t.first[h]]
		r.first[h], r.policy[h] = moved[first], moved[t.index[t.policy[h]]]
		// The chain's first rules, whether one was there before or not.
		if hook(h) == edit.hook && edit.before >= first && !slices.ContainsFunc(r.from, func(i int) bool { return i >= first && i < edit.before }) {
			r.first[h] = inserted
		}
	}
	return r, nil
}

// xtRule encodes a rule with a comment, as iptables does.
func (p pass) xtRule() []byte {
	e := make([]byte, xtEntryLen)
	name := func(at, mask int, prefix string) {
		if prefix == "" {
			return
		}
		copy(e[at:], prefix+"+")
		copy(e[mask:], bytes.Repeat([]byte{0xff}, len(prefix)))
	}
	name(xtInName, xtInMask, p.in)
	name(xtOutName, xtOutMask, p.out)
	if p.src.IsValid() {
		copy(e[xtSource:], p.src.AsSlice())
		copy(e[xtSourceMask:], []byte{0xff, 0xff, 0xff, 0xff})
	}
	if p.dst.IsValid() {
		copy(e[xtDestination:], p.dst.AsSlice())
		copy(e[xtDestMask:], []byte{0xff, 0xff, 0xff, 0xff})
	}
	if p.icmp {
		binary.NativeEndian.PutUint16(e[xtProtocol:], unix.IPPROTO_ICMP)
	}
	if p.sport != 0 || p.dport != 0 {
		binary.NativeEndian.PutUint16(e[xtProtocol:], unix.IPPROTO_UDP)
		var ports []byte // struct xt_udp
		for _, port := range slices.Concat(xtRange(p.sport), xtRange(p.dport)) {
			ports = binary.NativeEndian.AppendUint16(ports, port)
		}
		e = append(e, xtExtension("udp", append(ports, make([]byte, xtUDPLen-len(ports))...))...)
	}
	text := make([]byte, xtCommentLen)
	copy(text[:xtCommentLen-1], p.comment())
	e = append(e, xtExtension("comment", text)...)
	binary.NativeEndian.PutUint16(e[xtTargetAt:], uint16(len(e)))
	accept := int32(xtVerdictAccept)
	e = append(e, xtExtension("", append(binary.NativeEndian.AppendUint32(nil, uint32(accept)), 0, 0, 0, 0))...)
	binary.NativeEndian.PutUint16(e[xtNextAt:], uint16(len(e)))
	return e
}

func xtRange(port uint16) []uint16 {
	r := portRange(port)
	return r[:]
}

// xtExtension is a match or a target, of revision 0.
func xtExtension(name string, data []byte) []byte {
	out := make([]byte, xtHeaderLen)
	binary.NativeEndian.PutUint16(out, uint16(xtHeaderLen+len(data)))
	copy(out[2:2+xtExtNameLen-1], name)
	return append(out, data...)
}

// state is what plans depend on, apart from what has to pass.
func (t *xtTable) state() (string, error) {
	var out []string
	for _, h := range passHooks() {
		// What would be done if nothing had to pass, and if one thing had.
		for _, passes := range [][]pass{nil, {{hook: h, what: "?"}}} {
			edit, err := t.plan(h, passes)
			if err != nil {
				return "", err
			}
			if edit == nil {
				out = append(out, "nothing")
				continue
			}
			ours := sha256.New()
			for i, e := range t.entries {
				if edit.remove[i] {
					ours.Write(e.withoutCounters())
					fmt.Fprintf(ours, "%d ", edit.before-i)
				}
			}
			out = append(out, fmt.Sprintf("%d %x", len(edit.insert), ours.Sum(nil)))
		}
	}
	return strings.Join(out, " "), nil
}
