package main

import (
	"encoding/xml"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/liqonet/liqonet/test/kit"
)

func TestDraw(t *testing.T) {
	picture := string(draw([]frame{{0, "$ status\n"}, {time.Second, "$ status\n\x1b[1m\x1b[32ma & b\x1b[39m c\x1b[0m <d>\n"}}, 4))
	kit.CheckContains(t, "picture", picture,
		`<g transform="translate(0 28)"><text id="r0" xml:space="preserve">$ status</text></g>`, `<use href="#r0" y="28"/>`,
		`<tspan fill="#56d364" font-weight="bold">a &amp; b</tspan><tspan font-weight="bold"> c</tspan> &lt;d&gt;`,
		"16.67% { transform: translateX(-700px) }", "steps(1, end)")
	kit.NoError(t, xml.Unmarshal([]byte(picture), &struct{}{}))
}

func TestRecord(t *testing.T) {
	if testing.Short() {
		t.Skip("needs tmux")
	}
	if _, err := exec.LookPath("tmux"); err != nil {
		t.Fatal("tmux is missing: make packages")
	}
	frames := kit.Must(record(t.Context(), 10, []string{`printf '\033[32mgreen\033[0m\n'`, "echo second"}))(t)
	if last := frames[len(frames)-1].screen; !strings.Contains(last, "\x1b[32m") || !strings.Contains(last, "second") || strings.Contains(last, "dead") {
		t.Errorf("in the end there was %q", last)
	}
	_, err := record(t.Context(), 10, []string{"echo why; false"})
	kit.CheckError(t, "a command that fails", err, "why")
}
