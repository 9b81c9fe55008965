package cli

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/liqonet/liqonet/test/kit"
)

// terminal runs a command line in a separate process on a terminal with the given width. It returns the final screen, and the raw output.
// With 0 columns, the output is not a terminal.
func terminal(t *testing.T, columns int, file string, env []string, args ...string) (code int, screen, raw string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = append([]string{commandEnv + "=1", "HOME=" + t.TempDir(), "KUBECONFIG=" + file, "TERM=xterm-256color"}, env...)
	var out bytes.Buffer
	if columns == 0 {
		cmd.Stdout, cmd.Stderr = &out, &out
		err := cmd.Run()
		return exitCode(t, err), out.String(), out.String()
	}
	master, slave := openTerminal(t, columns)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	kit.NoError(t, cmd.Start())
	_ = slave.Close() // so that reading ends when the process does
	_, _ = io.Copy(&out, master)
	code = exitCode(t, cmd.Wait())
	return code, shown(out.String()), out.String()
}

func exitCode(t *testing.T, err error) int {
	t.Helper()
	if e := (*exec.ExitError)(nil); errors.As(err, &e) {
		return e.ExitCode()
	} else if err != nil {
		t.Fatal(err)
	}
	return 0
}

// openTerminal opens a pseudoterminal. See pty(7) and ptmx(4).
func openTerminal(t *testing.T, columns int) (master, slave *os.File) {
	t.Helper()
	master = kit.Must(os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0))(t)
	t.Cleanup(func() { _ = master.Close() })
	fd := int(master.Fd())
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	err = cmp.Or(err, unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0), unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 50, Col: uint16(columns)}))
	kit.NoError(t, err)
	slave = kit.Must(os.OpenFile("/dev/pts/"+strconv.Itoa(number), os.O_RDWR|unix.O_NOCTTY, 0))(t)
	return master, slave
}

// control matches sequences that move the cursor, clear, or set colors.
var control = regexp.MustCompile(`^\x1b\[([0-9;?]*)([A-Za-z])`)

// shown returns the screen of a terminal after this output.
func shown(raw string) string {
	lines, row, col := [][]rune{nil}, 0, 0
	for len(raw) > 0 {
		if m := control.FindStringSubmatch(raw); m != nil {
			raw = raw[len(m[0]):]
			n, _ := strconv.Atoi(m[1])
			switch m[2] {
			case "A":
				row = max(row-max(n, 1), 0)
			case "G":
				col = max(n, 1) - 1
			case "H":
				row, col = 0, 0
			case "K":
				switch {
				case n == 2:
					lines[row] = nil
				case col < len(lines[row]):
					lines[row] = lines[row][:col]
				}
			case "J":
				lines = lines[:row+1]
				lines[row] = lines[row][:min(col, len(lines[row]))]
			}
			continue
		}
		r, size := utf8.DecodeRuneInString(raw)
		raw = raw[size:]
		switch r {
		case '\r':
			col = 0
		case '\n':
			if row++; row == len(lines) {
				lines = append(lines, nil)
			}
			col = 0
		default:
			for len(lines[row]) <= col {
				lines[row] = append(lines[row], ' ')
			}
			lines[row][col] = r
			col++
		}
	}
	var out []string
	for _, l := range lines {
		out = append(out, strings.TrimRight(string(l), " "))
	}
	return strings.TrimRight(strings.Join(out, "\n"), "\n") + "\n"
}

// varies are parts of the output that differ between runs.
var varies = []struct {
	what *regexp.Regexp
	with string
}{
	{regexp.MustCompile(`\d+\.\d s\b`), "N.N s"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}Z`), "0000-00-00 00:00:00.000Z"},
	{regexp.MustCompile(`127\.0\.0\.1:\d{4,5}`), "127.0.0.1:NNNNN"},
	{regexp.MustCompile(`SHA256:[0-9A-Za-z+/]{43}`), "SHA256:FINGERPRINT"},
	{regexp.MustCompile(`/\S*/kubeconfig`), "KUBECONFIG"},
	{regexp.MustCompile(`\b(\ds {8}|\d\ds {7})`), "Ns        "},                                    // the age of a key, in its column
	{regexp.MustCompile(`(?m)^.* has no peering with .* any more; removing the side of .*\n`), ""}, // if one cluster needs a second longer
}

// copied matches lines that users copy, which may be longer than the terminal is wide.
var copied = regexp.MustCompile("^ *[^ ]*`?kubectl [^`]*`?[.;)]?$|^ *see https://\\S+$")

// No command prints lines longer than the terminal is wide, or colors if the user wants none. Golden files show changes of the output.
func TestTerminal(t *testing.T) {
	kit.NotShort(t)
	for _, mode := range []struct {
		name    string
		columns int
		env     []string
	}{{"80", 80, nil}, {"200", 200, nil}, {"80-no-color", 80, []string{"NO_COLOR=1"}}, {"piped", 0, nil}} {
		t.Run(mode.name, func(t *testing.T) {
			t.Parallel()
			var contexts []string
			for i, name := range []string{"cluster-a", "cluster-b"} {
				s := startNumbered(t, i+1, fmt.Sprintf("%08d-id-of-%s", i, name), name)
				contexts = append(contexts, name+"="+s.URL)
			}
			file := kubeconfig(t, filepath.Join(t.TempDir(), "kubeconfig"), append(contexts, "nobody")...)
			var all strings.Builder
			for _, line := range []struct {
				command string
				code    int
			}{
				{"--help", 0},
				{"peer --help", 0},
				{"unpeer --help", 0},
				{"upgrade --help", 0},
				{"rotate-keys --help", 0},
				{"status --help", 0},
				{"verify --help", 0},
				{"doctor --help", 0},
				{"graph --help", 0},
				{"map --help", 0},
				{"expose-host --help", 0},
				{"version --help", 0},
				{"status cluster-a cluster-b", 0},
				{"graph cluster-a", 0},
				{"verify cluster-a cluster-b", 2},
				{"doctor cluster-a cluster-b --objects-only", 0},
				{"peer cluster-a cluster-b --dry-run", 0},
				{"peer cluster-a cluster-b --dry-run --exit-code", 12},
				{"peer cluster-a cluster-b", 0},
				{"peer cluster-a cluster-b", 0},
				{"status cluster-a cluster-b", 0},
				{"status cluster-a cluster-b -o wide", 0},
				{"doctor cluster-a cluster-b --objects-only", 0},
				{"doctor cluster-a cluster-b --objects-only -o wide", 0},
				{"doctor cluster-a nobody --objects-only", 11},
				{"status cluster-a nobody", 3},
				{"status cluster-a cluster-b --history", 0},
				{"status cluster-a -o custom-columns=PEER:.peer,MTU:.planes[0].mtu", 0},
				{"status cluster-a -o name", 0},
				{"graph cluster-a cluster-b", 0},
				{"graph cluster-a cluster-b -o dot", 0},
				{"map cluster-a cluster-b 10.244.1.7", 0},
				{"upgrade cluster-a cluster-b --dry-run", 0},
				{"peer cluster-a", 2},
				{"peer cluster-a cluster-x", 2},
				{"peer cluster-a nobody", 3},
				{"status -o xml", 2},
				{"unpeer cluster-a cluster-b --dry-run", 0},
				{"unpeer cluster-a cluster-b", 0},
				{"unpeer cluster-a cluster-b", 0},
			} {
				code, screen, raw := terminal(t, mode.columns, file, mode.env, strings.Fields(line.command)...)
				kit.Check(t, fmt.Sprintf("%s: exit code", line.command), code, line.code)
				if strings.Contains(raw, "\x1b[") && mode.columns == 0 || regexp.MustCompile(`\x1b\[[0-9;]*m`).MatchString(strings.ReplaceAll(raw, "\x1b[0m", "")) && len(mode.env) > 0 {
					t.Errorf("%s: colours: %q", line.command, raw)
				}
				if colored := strings.Contains(raw, "\x1b[32mConnected\x1b[0m"); strings.HasPrefix(line.command, "status cluster-a cluster-b") && line.code == 0 &&
					strings.Contains(screen, "Connected") && colored != (mode.columns > 0 && len(mode.env) == 0) && !strings.Contains(line.command, "history") {
					t.Errorf("%s: the state is in color: %t", line.command, colored)
				}
				for _, v := range varies {
					screen = v.what.ReplaceAllString(screen, v.with)
				}
				for l := range strings.Lines(screen) {
					l = strings.TrimSuffix(l, "\n")
					wide := strings.Contains(line.command, "wide") && mode.columns == 80 // -o wide may exceed the width
					if n := utf8.RuneCountInString(l); mode.columns > 0 && n > mode.columns && !wide && !copied.MatchString(l) {
						t.Errorf("%s: a line of %d characters: %s", line.command, n, l)
					}
				}
				fmt.Fprintf(&all, "$ kubectl liqonet %s\n%s\n", line.command, screen)
			}
			golden(t, "terminal-"+mode.name+".txt", all.String())
		})
	}
}
