package firewall

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// iptables-legacy is out of reach of nftables: the kernel hands out and takes its
// tables as a whole, by socket options. They are only read here, never written. The
// kernel's layout is in linux/netfilter_ipv4/ip_tables.h and
// linux/netfilter/x_tables.h: entries follow each other, in the machine's byte order.
const (
	legacyTable = "filter"
	// legacyNames lists the tables that exist in the network namespace. Only those may
	// be asked for: asking for another one creates it and loads its module.
	legacyNames = "/proc/thread-self/net/ip_tables_names"

	// Socket options of level IPPROTO_IP.
	getInfo    = 64
	getEntries = 65
	// legacyAttempts bounds how often a table is read that others keep changing.
	legacyAttempts = 10

	hooksCount = 5
	nameLength = 32
	// entryLength is that of struct ipt_entry, extensionLength that of the header of a
	// match or target, which starts with its size and its name.
	entryLength, extensionLength, extensionName = 112, 32, 29
	// Offsets in struct ipt_entry, and the length of its part that matches packets.
	inNameAt, outNameAt, inMaskAt, flagsAt, matchLength, targetAt, nextAt = 16, 32, 48, 82, 84, 88, 90

	flagGoto    = 0x02    // IPT_F_GOTO
	errorTarget = "ERROR" // the header of a chain

	// Verdicts of the standard target. Others that are not negative are offsets.
	verdictDrop, verdictAccept, verdictReturn = -1, -2, -5
)

var errLegacy = errors.New("the kernel's table of iptables-legacy is not as expected")

// legacyInfo is struct ipt_getinfo.
type legacyInfo struct {
	Name          [nameLength]byte
	Hooks         uint32
	First, Policy [hooksCount]uint32
	Count, Size   uint32
}

// checkLegacy names the chains of iptables-legacy that drop what no rule accepts, with
// the rules that they lack. Where iptables-legacy is not in use there are none.
func checkLegacy(c Config) ([]LegacyChain, error) {
	names, err := os.ReadFile(legacyNames)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil // the kernel's module is not loaded
	}
	if err != nil {
		return nil, fmt.Errorf("list the tables of iptables-legacy: %w", err)
	}
	if !slices.Contains(strings.Fields(string(names)), legacyTable) {
		return nil, nil
	}
	info, entries, err := readLegacy()
	if err != nil {
		return nil, fmt.Errorf("read the table %s of iptables-legacy: %w", legacyTable, err)
	}
	var out []LegacyChain
	for _, h := range acceptHooks() {
		missing, err := missingRules(c, h, info, entries)
		if err != nil {
			return nil, fmt.Errorf("look at the chain %s of iptables-legacy: %w", h.chain(), err)
		}
		if len(missing) > 0 {
			out = append(out, LegacyChain{h.chain(), missing})
		}
	}
	return out, nil
}

// readLegacy reads the table of the calling thread's network namespace. It needs
// CAP_NET_ADMIN only.
func readLegacy() (info legacyInfo, entries []byte, err error) {
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return info, nil, fmt.Errorf("open a socket: %w", err)
	}
	defer func() { err = errors.Join(err, unix.Close(socket)) }()
	get := func(option uintptr, value []byte) error {
		copy(value, legacyTable)
		size := uint32(len(value))
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(socket), unix.IPPROTO_IP, option,
			uintptr(unsafe.Pointer(&value[0])), uintptr(unsafe.Pointer(&size)), 0)
		switch {
		case errno != 0:
			return errno
		case int(size) != len(value):
			return fmt.Errorf("%w: %d bytes instead of %d", errLegacy, size, len(value))
		}
		return nil
	}
	for range legacyAttempts {
		b := make([]byte, binary.Size(info))
		if err := get(getInfo, b); err != nil {
			return info, nil, err
		}
		if _, err := binary.Decode(b, binary.NativeEndian, &info); err != nil {
			return info, nil, err
		}
		const header = nameLength + 8 // struct ipt_get_entries
		b = make([]byte, header+int(info.Size))
		binary.NativeEndian.PutUint32(b[nameLength:], info.Size)
		// EAGAIN: it has changed meanwhile.
		if err := get(getEntries, b); !errors.Is(err, unix.EAGAIN) {
			return info, b[header:], err
		}
	}
	return info, nil, unix.EAGAIN
}

// missingRules returns the rules that one chain lacks. A rule that names the overlay's
// interfaces or its port, and accepts, counts as there, whatever else it matches.
func missingRules(c Config, h hook, info legacyInfo, entries []byte) ([]string, error) {
	if info.Hooks&(1<<h) == 0 {
		return nil, nil
	}
	rules, err := legacyRules(entries, info.First[h], info.Policy[h])
	if err != nil {
		return nil, err
	}
	policy, err := legacyEntryAt(entries, info.Policy[h])
	if err != nil {
		return nil, err
	}
	steps := legacySteps(rules)
	last, v, err := newEvaluator(func(name string) ([]step, error) {
		offset, err := strconv.ParseUint(name, 10, 32)
		if err != nil {
			return nil, err
		}
		rules, err := legacyRules(entries, uint32(offset), uint32(len(entries)))
		return legacySteps(rules), err
	}).decides(steps, policy.step().verdict)
	if err != nil || v != drops {
		return nil, err
	}
	type required struct {
		rule string
		is   func(legacyEntry) bool
	}
	in := required{"-i " + c.OverlayPrefix + "+ -j ACCEPT", func(e legacyEntry) bool { return e.interfaceAt(inNameAt, c.OverlayPrefix) }}
	other := required{"-o " + c.OverlayPrefix + "+ -j ACCEPT", func(e legacyEntry) bool { return e.interfaceAt(outNameAt, c.OverlayPrefix) }}
	if h == hookInput {
		other = required{fmt.Sprintf("-p udp --dport %d -j ACCEPT", c.OverlayPort), func(e legacyEntry) bool { return e.udpTo(c.OverlayPort) }}
	}
	var missing []string
	for _, r := range []required{in, other} {
		if !slices.ContainsFunc(rules[:last], func(e legacyEntry) bool { return e.target() == verdictAccept && r.is(e) }) {
			missing = append(missing, r.rule)
		}
	}
	return missing, nil
}

// legacyEntry is a rule, a policy, or the header of a chain.
type legacyEntry struct {
	offset uint32
	raw    []byte
}

// legacyEntryAt returns the entry at an offset, after looking at its sizes.
func legacyEntryAt(entries []byte, offset uint32) (legacyEntry, error) {
	bad := fmt.Errorf("%w: entry at %d of %d", errLegacy, offset, len(entries))
	if uint64(offset)+entryLength > uint64(len(entries)) {
		return legacyEntry{}, bad
	}
	rest := entries[offset:]
	target, next := int(native16(rest[targetAt:])), int(native16(rest[nextAt:]))
	if target < entryLength || next < target+extensionLength || next > len(rest) {
		return legacyEntry{}, bad
	}
	if standard := extension(rest[target:]) == ""; standard && next < target+extensionLength+4 {
		return legacyEntry{}, bad
	}
	for at := entryLength; at < target; {
		size := int(native16(rest[at:]))
		if size < extensionLength || at+size > target {
			return legacyEntry{}, bad
		}
		at += size
	}
	return legacyEntry{offset, rest[:next]}, nil
}

// legacyRules returns the entries from an offset to an end, or to the next chain.
func legacyRules(entries []byte, from, to uint32) (rules []legacyEntry, err error) {
	for from < to {
		e, err := legacyEntryAt(entries, from)
		if err != nil {
			return nil, err
		}
		if e.targetName() == errorTarget {
			break
		}
		rules = append(rules, e)
		from += uint32(len(e.raw))
	}
	return rules, nil
}

func legacySteps(rules []legacyEntry) []step {
	out := make([]step, len(rules))
	for i, e := range rules {
		out[i] = e.step()
	}
	return out
}

// step says what a rule does with every packet. Chains are named by the offset of
// their first rule.
func (e legacyEntry) step() step {
	if !e.unconditional() {
		return step{}
	}
	switch v := e.target(); {
	case e.targetName() == "REJECT", e.targetName() == "" && v == verdictDrop:
		return step{verdict: drops}
	case e.targetName() != "":
		return step{}
	case v == verdictAccept:
		return step{verdict: accepts}
	case v == verdictReturn:
		return step{verdict: returns}
	case v < 0 || uint32(v) == e.offset+uint32(len(e.raw)):
		return step{} // to user space, or a rule that only counts
	case e.raw[flagsAt]&flagGoto != 0:
		return step{gotos, fmt.Sprint(v)}
	default:
		return step{jumps, fmt.Sprint(v)}
	}
}

// targetName is empty for the standard target.
func (e legacyEntry) targetName() string { return extension(e.raw[native16(e.raw[targetAt:]):]) }

// target is the standard target's verdict; 0 for others.
func (e legacyEntry) target() int32 {
	if e.targetName() != "" {
		return 0
	}
	return int32(binary.NativeEndian.Uint32(e.raw[int(native16(e.raw[targetAt:]))+extensionLength:]))
}

// matches calls f for each match with its name and data until f says no.
func (e legacyEntry) matches(f func(name string, data []byte) bool) {
	for at, target := entryLength, int(native16(e.raw[targetAt:])); at < target; {
		size := int(native16(e.raw[at:]))
		if !f(extension(e.raw[at:]), e.raw[at+extensionLength:at+size]) {
			return
		}
		at += size
	}
}

// unconditional says that a rule is for every packet.
func (e legacyEntry) unconditional() bool {
	for i, b := range e.raw[:matchLength] {
		// Of an interface's name the mask counts: `-i +` is a name without one.
		name := i >= inNameAt && i < inMaskAt
		if b != 0 && i != flagsAt && !name {
			return false
		}
	}
	all := true
	e.matches(func(name string, _ []byte) bool {
		all = name == "comment"
		return all
	})
	return all
}

// interfaceAt says whether the name of an interface in the entry starts with a prefix.
func (e legacyEntry) interfaceAt(offset int, prefix string) bool {
	return bytes.HasPrefix(e.raw[offset:], []byte(prefix))
}

// udpTo says whether the rule is about a UDP destination port (struct xt_udp).
func (e legacyEntry) udpTo(port uint16) (found bool) {
	e.matches(func(name string, data []byte) bool {
		const from, to = 4, 6
		found = name == "udp" && len(data) >= to+2 && native16(data[from:]) <= port && port <= native16(data[to:])
		return !found
	})
	return found
}

// extension is the name of a match or target.
func extension(b []byte) string {
	name, _, _ := bytes.Cut(b[2:2+extensionName], []byte{0})
	return string(name)
}

func native16(b []byte) uint16 { return binary.NativeEndian.Uint16(b) }
