// Package kubeapi is a client for the API servers of the lab, and what the lab wants to know of Nodes.
package kubeapi

import (
	"cmp"
	"context"
	"net/netip"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
)

// New returns a client of the API server at the given URL. The authority, the
// certificate and its key are PEM.
func New(server string, authority, certificate, key []byte) (*client.CoreV1Client, error) {
	return client.NewForConfig(&rest.Config{
		Host: server, QPS: -1, TLSClientConfig: rest.TLSClientConfig{CAData: authority, CertData: certificate, KeyData: key},
	})
}

// PodCIDRLabel is the label of Nodes that have no spec.podCIDR with their pods'
// range.
const PodCIDRLabel = "lab.local/pod-cidr"

// LabelOf is a range as a label's value, which must not have a slash.
func LabelOf(p netip.Prefix) string { return strings.ReplaceAll(p.String(), "/", "_") }

// Node is what the lab wants to know of a node.
type Node struct {
	PodCIDR  netip.Prefix // invalid until assigned
	Internal netip.Addr   // the InternalIP; invalid until reported
	Ready    bool
	Message  string // why the node is not ready, in the kubelet's words
}

// FollowNodes calls changed with all nodes, now and after each change, until
// the context ends or changed returns false. A broken connection is made
// again; only the context's end is an error.
func FollowNodes(ctx context.Context, api client.NodesGetter, changed func(map[string]Node) bool) error {
	for {
		if done, _ := followNodesOnce(ctx, api.Nodes(), changed); done {
			return nil
		}
		// The API server closes a watch now and then, and may be restarted.
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func followNodesOnce(ctx context.Context, api client.NodeInterface, changed func(map[string]Node) bool) (bool, error) {
	list, err := api.List(ctx, metav1.ListOptions{})
	if err != nil {
		return false, err
	}
	nodes := map[string]Node{}
	for _, n := range list.Items {
		nodes[n.Name] = summary(&n)
	}
	if !changed(nodes) {
		return true, nil
	}
	events, err := api.Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		return false, err
	}
	defer events.Stop()
	for e := range events.ResultChan() {
		n, ok := e.Object.(*corev1.Node)
		switch {
		case !ok: // the version is too old: list again
			return false, apierrors.FromObject(e.Object)
		case e.Type == watch.Deleted:
			delete(nodes, n.Name)
		default:
			nodes[n.Name] = summary(n)
		}
		if !changed(nodes) {
			return true, nil
		}
	}
	return false, nil
}

func summary(n *corev1.Node) Node {
	node := Node{Message: "no status yet"}
	// What does not parse stays invalid, which means "not known yet".
	node.PodCIDR, _ = netip.ParsePrefix(cmp.Or(n.Spec.PodCIDR, strings.ReplaceAll(n.Labels[PodCIDRLabel], "_", "/")))
	for _, a := range n.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			node.Internal, _ = netip.ParseAddr(a.Address)
		}
	}
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			node.Ready, node.Message = c.Status == corev1.ConditionTrue, c.Message
		}
	}
	return node
}
