// Command record runs commands in a terminal of 80 columns, and draws what stood there, as a picture that moves.
//
//	go run ./scripts/record -o docs/images/peer.svg 'kubectl liqonet peer cluster-a cluster-b' 'kubectl liqonet status'
//
// tmux is the terminal. The commands find clusters and programs by the environment, as in any shell.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

const (
	columns = 80
	// sample is how often the screen is looked at.
	sample = 100 * time.Millisecond
	// play shows each command and runs it, and writes into a file how that ended. People have some time to read what a
	// command says. 11 is how doctor ends when it has found something.
	play = `trap 'echo $? >"$0"' EXIT; for command; do printf '\033[1m$ %s\033[0m\n' "$command"; bash -c "$command" || (($? == 11)) || exit; read -rt 2; echo; done`
	// most is how long all of them may take.
	most = 5 * time.Minute
)

// frame is what stood on the screen from a moment on, as tmux prints it with its colours.
type frame struct {
	at     time.Duration
	screen string
}

func main() {
	out := flag.String("o", "", "the picture")
	rows := flag.Int("rows", 24, "lines of the terminal")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *out, *rows, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "record:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out string, rows int, commands []string) error {
	if out == "" || len(commands) == 0 {
		return errors.New("name a picture by -o, and commands")
	}
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	frames, err := record(ctx, rows, commands)
	if err != nil {
		return err
	}
	return os.WriteFile(out, draw(frames, rows), 0o644)
}

// terminal is the socket of a tmux server of its own, which has one window.
type terminal string

func (t terminal) tmux(ctx context.Context, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, "tmux", append([]string{"-S", string(t), "-f", os.DevNull}, args...)...).Output()
	if err != nil {
		return "", fmt.Errorf("tmux %s: %w", args[0], err)
	}
	return string(out), nil
}

// record runs the commands one after the other. It fails if one of them does.
func record(ctx context.Context, rows int, commands []string) (frames []frame, err error) {
	dir, err := os.MkdirTemp("", "record")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	t := terminal(filepath.Join(dir, "tmux"))
	defer func() { _, _ = t.tmux(context.WithoutCancel(ctx), "kill-server") }()
	ended := filepath.Join(dir, "ended")
	window := []string{"new-session", "-d", "-x", strconv.Itoa(columns), "-y", strconv.Itoa(rows), "bash", "-c", play, ended}
	// One call of tmux, so that the window stays also if the commands end at once.
	window = append(append([]string{"set-option", "-g", "remain-on-exit", "on", ";", "set-option", "-g", "remain-on-exit-format", "", ";"}, window...), commands...)
	if _, err := t.tmux(ctx, append([]string{"start-server", ";"}, window...)...); err != nil {
		return nil, err
	}
	start := time.Now()
	ticks := time.NewTicker(sample)
	defer ticks.Stop()
	for {
		status, _ := os.ReadFile(ended) // there is none until then
		screen, err := t.tmux(ctx, "capture-pane", "-e", "-p")
		if err != nil {
			return nil, err
		}
		if len(frames) == 0 || frames[len(frames)-1].screen != screen {
			frames = append(frames, frame{time.Since(start), screen})
		}
		switch string(status) {
		case "":
		case "0\n":
			return frames, nil
		default:
			return nil, fmt.Errorf("a command has failed with %s%s", status, screen)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-ticks.C:
		}
	}
}
