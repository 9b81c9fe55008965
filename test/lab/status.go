package lab

import (
	"errors"
	"io/fs"
	"path/filepath"

	"github.com/samber/lo"

	"github.com/liqonet/liqonet/test/lab/internal/nodeinit"
)

// Status is what there is of a lab.
type Status struct {
	Name       string          `json:"name"`
	Up         bool            `json:"up"`
	Kubeconfig string          `json:"kubeconfig,omitempty"`
	Clusters   []ClusterStatus `json:"clusters"`
}

// ClusterStatus is what there is of a cluster.
type ClusterStatus struct {
	Name   string       `json:"name"`
	Server string       `json:"server"`
	Spec   ClusterSpec  `json:"spec"`
	Nodes  []NodeStatus `json:"nodes"`
}

// NodeStatus is what there is of a node. Whether Kubernetes calls it Ready is
// the API server's to say.
type NodeStatus struct {
	Name         string `json:"name"`
	Address      string `json:"address"`
	ControlPlane bool   `json:"controlPlane"`
	Running      bool   `json:"running"`
	// Exited are the components that do not run although the node does, and
	// how they ended.
	Exited map[string]string `json:"exited,omitempty"`
}

// Healthy reports whether the lab is up with all its nodes and components.
func (s Status) Healthy() bool {
	for _, c := range s.Clusters {
		for _, n := range c.Nodes {
			if !n.Running || len(n.Exited) > 0 {
				return false
			}
		}
	}
	return s.Up
}

// Status reads the state of the lab. A lab that is not up is no error.
func (l *Lab) Status() (Status, error) {
	s := Status{Name: l.name, Clusters: []ClusterStatus{}}
	// The kubeconfig is the last that a start writes.
	var err error
	if s.Up, err = exists(l.Kubeconfig()); err != nil {
		return s, err
	}
	if s.Up {
		s.Kubeconfig = l.Kubeconfig()
	}
	clusters, err := l.Clusters()
	if err != nil {
		return s, err
	}
	for _, c := range clusters {
		nodes, err := c.Nodes()
		if err != nil {
			return s, err
		}
		cs := ClusterStatus{Name: c.Spec.Name, Server: c.Server(), Spec: c.Spec}
		for _, n := range nodes {
			ns := NodeStatus{Name: n.Name, Address: n.Address.String(), ControlPlane: n.ControlPlane, Running: n.Running()}
			components := map[string]nodeinit.ComponentStatus{}
			err := readJSON(filepath.Join(n.dir(), nodeinit.StatusFile), &components)
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return s, err
			}
			if ns.Running {
				ended := lo.PickBy(components, func(_ string, c nodeinit.ComponentStatus) bool { return c.Exited != "" })
				ns.Exited = lo.MapValues(ended, func(c nodeinit.ComponentStatus, _ string) string { return c.Exited })
			}
			cs.Nodes = append(cs.Nodes, ns)
		}
		s.Clusters = append(s.Clusters, cs)
	}
	return s, nil
}
