// Command policy-oracle says which packets NetworkPolicies admit, by the evaluator of
// kube-network-policies. It reads objects and packets from standard input, as JSON, and
// writes a verdict for each packet.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	_ "unsafe" // go:linkname

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/kube-network-policies/pkg/networkpolicy"
)

// question is what is read: what an API server has, and packets as nodes see them.
type question struct {
	Policies   []networkingv1.NetworkPolicy
	Pods       []corev1.Pod
	Namespaces []corev1.Namespace
	Packets    []struct {
		From, To net.IP
		Protocol corev1.Protocol
		Port     int
	}
}

// packet is the evaluator's own type, which it does not export.
type packet struct {
	_        uint32
	_        corev1.IPFamily
	from, to net.IP
	protocol corev1.Protocol
	_, port  int
	_        []byte
}

//go:linkname evaluatePacket sigs.k8s.io/kube-network-policies/pkg/networkpolicy.(*Controller).evaluatePacket
func evaluatePacket(*networkpolicy.Controller, context.Context, packet) bool

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	var q question
	if err := json.NewDecoder(os.Stdin).Decode(&q); err != nil {
		return fmt.Errorf("read objects and packets: %w", err)
	}
	client := fake.NewClientset()
	factory := informers.NewSharedInformerFactory(client, 0)
	policies, namespaces, pods := factory.Networking().V1().NetworkPolicies(), factory.Core().V1().Namespaces(), factory.Core().V1().Pods()
	c, err := networkpolicy.NewController(client, policies, namespaces, pods, nil, nil, nil, nil, networkpolicy.Config{NodeName: "none"})
	if err != nil {
		return fmt.Errorf("make the evaluator: %w", err)
	}
	// The evaluator reads the informers' stores, which are filled by hand.
	if err := fill(policies.Informer().GetStore(), q.Policies); err != nil {
		return err
	}
	if err := fill(namespaces.Informer().GetStore(), q.Namespaces); err != nil {
		return err
	}
	if err := fill(pods.Informer().GetStore(), q.Pods); err != nil {
		return err
	}
	admitted := make([]bool, len(q.Packets))
	for i, p := range q.Packets {
		admitted[i] = evaluatePacket(c, context.Background(), packet{from: p.From, to: p.To, protocol: p.Protocol, port: p.Port})
	}
	return json.NewEncoder(os.Stdout).Encode(admitted)
}

func fill[T any](store cache.Store, objects []T) error {
	for i := range objects {
		if err := store.Add(&objects[i]); err != nil {
			return err
		}
	}
	return nil
}
