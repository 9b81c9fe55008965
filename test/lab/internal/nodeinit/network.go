package nodeinit

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Program is where a node has the lab's own program.
const Program = "/lab/program"

// VethPlugin is the name by which the lab's program is a CNI plugin.
const VethPlugin = "lab-veth"

// mountNetwork gives the node what its network needs of the host.
func (m *mounts) mountNetwork(cfg Config, in func(string) string) {
	program, err := os.Executable()
	if err != nil {
		m.err = err
		return
	}
	m.mkdir(in(filepath.Dir(Program)))
	m.write(in(Program), "")
	m.mount(program, in(Program), "", unix.MS_BIND, "")
	for target, source := range cfg.Network.Mounts {
		m.bind(source, in(target), true)
	}
	for name, program := range cfg.Network.Plugins {
		m.symlink(program, in("opt/cni/bin/"+name))
	}
	if cfg.Network.CNIConfig != "" {
		m.write(in("etc/cni/net.d/10-lab.conflist"), cfg.Network.CNIConfig)
	}
}

// setUpNetwork does what a network needs before its first pod.
func (n *node) setUpNetwork(ctx context.Context) error {
	for _, command := range n.cfg.Network.Setup {
		if err := n.run(ctx, command[0], command[1:]...); err != nil {
			return err
		}
	}
	return nil
}

func (n *node) run(ctx context.Context, name string, args ...string) error {
	program, err := exec.LookPath(name)
	if err != nil {
		return err
	}
	return n.reaper.once(ctx, name, program, args...)
}

// annotate writes the network's annotations, when the kubelet has registered.
func (n *node) annotate(ctx context.Context) error {
	if len(n.cfg.Network.Annotations) == 0 {
		return nil
	}
	patch := map[string]any{"metadata": map[string]any{"annotations": n.cfg.Network.Annotations}}
	return (&process{name: "kubelet", done: make(chan struct{})}).wait(ctx, func(ctx context.Context) error {
		_, err := n.api.Nodes().Patch(ctx, n.cfg.Node, types.MergePatchType, encode(patch), metav1.PatchOptions{})
		return err
	})
}
