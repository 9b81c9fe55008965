package firewall

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"unsafe"

	"github.com/google/nftables"
	"github.com/samber/lo"
	"golang.org/x/sys/unix"

	"github.com/liqonet/liqonet/pkg/wire"
)

// iptables-legacy cannot be accessed with nftables: the kernel reads and writes its tables as a whole, with socket
// options. This package only reads them. The kernel's layout is in linux/netfilter_ipv4/ip_tables.h and
// linux/netfilter/x_tables.h: entries follow each other, in native byte order. The kernel has checked all sizes in
// them.
const (
	legacyTable = "filter"
	// legacyNames lists the tables that exist in the network namespace. Only these may be requested: a request for
	// another table creates it and loads its module.
	legacyNames = "/proc/thread-self/net/ip_tables_names"

	// Socket options of level IPPROTO_IP.
	getInfo    = 64
	getEntries = 65

	hooksCount = 5
	nameLength = 32
	// extensionLength is the length of the header of a match or target, which has a size, a name and a revision.
	extensionLength = 32

	// Verdicts of the standard target, whose name is empty. Verdicts of jumps are not negative.
	legacyDrop, legacyAccept, legacyReturn = -1, -2, -5
)

// legacyInfo is struct ipt_getinfo.
type legacyInfo struct {
	Name          [nameLength]byte
	Hooks         uint32
	First, Policy [hooksCount]uint32
	Count, Size   uint32
}

// legacyPackets describes the packets that a rule applies to, apart from its matches (struct ipt_ip). The mask of an
// interface's name is significant: `-i +` is a name without a mask.
type legacyPackets struct {
	Src, Dst, SrcMask, DstMask uint32
	In, Out, InMask, OutMask   [unix.IFNAMSIZ]byte
	Protocol                   uint16
	Flags, Inverted            uint8
}

// legacyEntry is a rule or a policy, which is also a rule (struct ipt_entry).
type legacyEntry struct {
	legacyPackets
	_            uint32
	Target, Next uint16
	_            [20]byte // the hooks, and counters
}

// checkLegacy returns the rules that are missing in chains of iptables-legacy that drop packets that no rule accepts.
// There are none if iptables-legacy is not in use.
func checkLegacy(overlayPort uint16) (advice []string, err error) {
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
	for _, h := range []nftables.ChainHook{hookInput, hookForward} {
		chain := iptablesChains()[h]
		commands := lo.Map(missingRules(overlayPort, h, info, entries), func(rule string, _ int) string {
			return "iptables-legacy -w -I " + chain + " " + rule
		})
		if len(commands) > 0 {
			advice = append(advice, "iptables-legacy drops packets of peers in its chain "+chain+
				" unless a rule accepts them; run on this node: "+strings.Join(commands, "; "))
		}
	}
	return advice, nil
}

// readLegacy reads the table of the calling thread's network namespace. It needs only CAP_NET_ADMIN. The error is
// EAGAIN if another process changes the table at the same time.
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
		return lo.Ternary[error](errno != 0, errno, nil)
	}
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
	return info, b[header:], get(getEntries, b)
}

// missingRules returns the rules that a chain lacks. A rule that names the overlay's interfaces or port, and accepts,
// counts as present, whatever else it matches. Chains that others jump to are not checked.
func missingRules(overlayPort uint16, h nftables.ChainHook, info legacyInfo, entries []byte) (missing []string) {
	prefix := []byte(wire.LinkPrefix)
	in, other := "-i "+wire.LinkPrefix+"+ -j ACCEPT", "-o "+wire.LinkPrefix+"+ -j ACCEPT"
	if h == hookInput {
		other = fmt.Sprintf("-p udp --dport %d -j ACCEPT", overlayPort)
	}
	missing = []string{in, other}
	// The last rule is the policy.
	for at := info.First[h]; ; {
		r := legacyRuleAt(entries, at)
		at += uint32(r.Next)
		switch {
		case r.always && (r.target == "REJECT" || r.verdict == legacyDrop):
			return missing
		case r.always && r.verdict == legacyAccept:
			return nil
		case r.always && r.verdict == legacyReturn:
			at = info.Policy[h]
		case r.verdict == legacyAccept:
			if bytes.HasPrefix(r.In[:], prefix) {
				missing = lo.Without(missing, in)
			}
			if h == hookForward && bytes.HasPrefix(r.Out[:], prefix) ||
				h == hookInput && r.firstPort <= overlayPort && overlayPort <= r.lastPort {
				missing = lo.Without(missing, other)
			}
		}
	}
}

// legacyRule is a decoded rule.
type legacyRule struct {
	legacyEntry
	// always is true if the rule applies to every packet.
	always bool
	// firstPort and lastPort are the UDP destination ports that it matches.
	firstPort, lastPort uint16
	target              string
	// verdict is that of the standard target, 0 for other targets.
	verdict int32
}

func legacyRuleAt(entries []byte, at uint32) (r legacyRule) {
	b := entries[at:]
	length, _ := binary.Decode(b, binary.NativeEndian, &r.legacyEntry)
	packets := r.legacyPackets
	packets.In, packets.Out, packets.Flags = [unix.IFNAMSIZ]byte{}, [unix.IFNAMSIZ]byte{}, 0
	r.always = packets == legacyPackets{}
	for m := b[length:r.Target]; len(m) > 0; m = m[native16(m):] {
		switch legacyName(m) {
		case "comment":
		case "udp": // struct xt_udp
			r.firstPort, r.lastPort = native16(m[extensionLength+4:]), native16(m[extensionLength+6:])
		default:
			r.always = false
		}
	}
	if r.target = legacyName(b[r.Target:]); r.target == "" {
		r.verdict = int32(binary.NativeEndian.Uint32(b[r.Target+extensionLength:]))
	}
	return r
}

// legacyName returns the name of a match or target.
func legacyName(b []byte) string {
	name, _, _ := bytes.Cut(b[2:extensionLength-1], []byte{0})
	return string(name)
}

func native16(b []byte) uint16 { return binary.NativeEndian.Uint16(b) }

// Hooks with accept rules.
const (
	hookInput   = nftables.ChainHook(unix.NF_INET_LOCAL_IN)
	hookForward = nftables.ChainHook(unix.NF_INET_FORWARD)
)

// iptablesChains returns the names of iptables' chains at these hooks.
func iptablesChains() map[nftables.ChainHook]string {
	return map[nftables.ChainHook]string{hookInput: "INPUT", hookForward: "FORWARD"}
}
