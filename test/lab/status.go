package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/liqonet/liqonet/test/lab/internal/nodeinit"
)

// running is the state of a node that runs with all of its components.
const running = "running"

// State says whether the node runs, and how those of its components have ended that do not. Whether
// Kubernetes calls it Ready is the API server's to say.
func (n *Node) State() (string, error) {
	if !n.Running() {
		return "dead", nil
	}
	exited := map[string]string{}
	err := readJSON(filepath.Join(n.dir(), nodeinit.ExitedFile), &exited)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	var states []string
	for _, component := range slices.Sorted(maps.Keys(exited)) {
		states = append(states, component+" "+exited[component])
	}
	if len(states) == 0 {
		return running, nil
	}
	return strings.Join(states, ", "), nil
}

// Healthy returns nil if the lab is up with all its nodes and components.
func (l *Lab) Healthy() error {
	// The kubeconfig is the last that a start writes.
	if up, err := exists(l.Kubeconfig()); err != nil || !up {
		return errors.Join(err, fmt.Errorf("lab %s: %w", l.name, ErrNotUp))
	}
	nodes, err := l.Nodes()
	for _, n := range nodes {
		state, stateErr := n.State()
		err = errors.Join(err, stateErr)
		if state != running {
			err = errors.Join(err, fmt.Errorf("node %q: %s", n.Name, state))
		}
	}
	return err
}
