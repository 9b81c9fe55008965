// Package nodeinit is the first process of a node of the lab.
//
// The lab starts its own binary in new network, mount, pid, uts and ipc
// namespaces. That process waits until the lab has connected its network
// namespace, makes a root file system of its own (the host's programs, nothing
// of the host's state), starts the Kubernetes components, and then only reaps
// and keeps the routes to the other nodes' pods. A component that ends is
// reported, never restarted. Killing the process is the loss of the node: the
// kernel kills everything else in its pid namespace.
package nodeinit

import (
	"encoding/json"
	"net/netip"
	"time"

	"github.com/liqonet/liqonet/test/lab/internal/kubeapi"
)

// The file descriptors that the lab hands to the node's first process. A byte from its standard
// input says that the network is there; its end without one says that the lab has died, and the
// node must go as well.
const (
	// EventFD is a pipe that takes Events, as lines of JSON.
	EventFD = 3
	// ListenerFD is a TCP listener in the lab's network namespace, through
	// which the API server is reached. Only the control plane has it.
	ListenerFD = 4
)

// Config says what the node is. Paths are the host's.
type Config struct {
	Cluster      string
	Node         string
	ControlPlane bool

	Address   netip.Addr // of the node
	APIServer netip.Addr // of the control plane

	NodeCIDRMaskSize int
	ServiceCIDR      netip.Prefix
	DNS              netip.Addr // what pods are told to ask
	// OwnPodCIDR is a worker's where Kubernetes gives Nodes no part of PodCIDR.
	OwnPodCIDR netip.Prefix
	NodeGrace  time.Duration // 0: as Kubernetes has it
	ProxyMode  string

	Dir    string // the node's own directory
	BinDir string // the programs of Kubernetes, etcd and containerd
	CNIDir string // the CNI plugins of the distribution
	// Programs is the node's only directory of the machine's programs; empty: those
	// that distributions have.
	Programs   string
	ImageDir   string // images to import before the kubelet starts
	CgroupPath string // relative to each hierarchy's root

	Network Network
}

// Network says how pods are connected.
type Network struct {
	// CNITemplate is a CNI configuration, in which containerd replaces
	// {{.PodCIDR}} by the node's; if it is empty, CNIConfig is used as it is.
	CNITemplate, CNIConfig string
	// Mounts are directories of the host that the node has, by its own path.
	Mounts map[string]string
	// Plugins are CNI plugins besides the distribution's, with their programs.
	Plugins map[string]string
	// NodeCIDR is divided among nodes by Kubernetes; if it is invalid, they get
	// none.
	NodeCIDR netip.Prefix
	// ProxyCIDR is what kube-proxy takes for the pods' range, if it knows one.
	ProxyCIDR string
	// Routes is whether the node routes other nodes' pods to them.
	Routes bool
	// Blocks are the nodes' pod ranges by their addresses, where they are not
	// those that Kubernetes gave them.
	Blocks map[netip.Addr]netip.Prefix
	// Setup are commands that are run once, before anything else is started.
	Setup [][]string
	// KubeletArgs are more arguments of the kubelet.
	KubeletArgs []string
	// Annotations are those that the network gives the Node.
	Annotations map[string]string
	// ReadyFile exists on the node when its network works. Optional.
	ReadyFile string
}

// PodsOf returns the range that other nodes route to a node; invalid while it is
// not known.
func (n Network) PodsOf(other kubeapi.Node) netip.Prefix {
	if n.Blocks != nil {
		return n.Blocks[other.Internal]
	}
	return other.PodCIDR
}

// Event is what the node tells the lab while it starts.
type Event struct {
	// Component is the program that the event is about; empty: the whole node.
	Component string `json:"component,omitempty"`
	// Error says what failed; empty: the node is ready.
	Error string `json:"error,omitempty"`
}

// Names in a node's directory, on the host.
const (
	ConfigFile = "node.json"
	// ExitedFile has the components that have ended although the node runs, and how.
	ExitedFile = "exited.json"
	LogDir     = "log"
	PKIDir     = "pki"
	// InitLog is the log of this package, in LogDir.
	InitLog = "init"
)

func encode(v any) []byte {
	// Only types of this package, which encode.
	b, _ := json.Marshal(v)
	return append(b, '\n')
}
