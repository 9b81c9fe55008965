// Package workload runs test pods in clusters and lets them call each other: one
// pod on every node, by a DaemonSet of the lab's tester image. It needs nothing
// but a kubeconfig and kubectl, so it works against any cluster that can get the
// image.
package workload

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	"github.com/liqonet/liqonet/test/lab"
)

// Ports of the test pods.
const (
	TCPPort  = 7000
	UDPPort  = 7001
	HTTPPort = 8080
)

// Cluster is one cluster, by its context.
type Cluster struct {
	Name, Kubeconfig, Kubectl string
}

// Pod is a test pod.
type Pod struct {
	Cluster *Cluster
	Name    string
	Node    string
	IP      netip.Addr
}

// String names the pod in messages.
func (p Pod) String() string { return p.Cluster.Name + "/" + p.Name + " on " + p.Node }

// Answer is what a call got (see the lab's tester).
type Answer struct {
	OK              bool    `json:"ok"`
	RTTMilliseconds float64 `json:"rttMilliseconds"`
	Local           string  `json:"local"`
	Server          *struct {
		Hostname string `json:"hostname"`
		Source   string `json:"source"`
	} `json:"server"`
	Error string `json:"error"`
}

// Source is the caller's address as the server saw it; invalid for ICMP, whose
// server says nothing.
func (a Answer) Source() netip.Addr {
	if a.Server == nil {
		return netip.Addr{}
	}
	ap, err := netip.ParseAddrPort(a.Server.Source)
	if err != nil {
		return netip.Addr{}
	}
	return ap.Addr().Unmap()
}

// Run runs kubectl and returns its standard output. What kubectl keeps is next to the kubeconfig, and goes with the lab.
func (c *Cluster) Run(ctx context.Context, stdin string, args ...string) (string, error) {
	cache := filepath.Join(filepath.Dir(c.Kubeconfig), "kubectl")
	cmd := exec.CommandContext(ctx, c.Kubectl, append([]string{"--kubeconfig", c.Kubeconfig, "--context", c.Name, "--cache-dir", cache}, args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("kubectl --context %s %s: %w: %s", c.Name, strings.Join(args, " "), err, strings.TrimSpace(errs.String()))
	}
	return out.String(), nil
}

const manifest = `
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: tester, namespace: default, labels: {app: tester}}
spec:
  selector: {matchLabels: {app: tester}}
  template:
    metadata: {labels: {app: tester}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
      - name: tester
        image: %s
        imagePullPolicy: IfNotPresent
        args: [serve, -tcp, ":%d", -udp, ":%d", -http, ":%d"]
---
apiVersion: v1
kind: Service
metadata: {name: tester, namespace: default}
spec:
  selector: {app: tester}
  ports: [{name: http, port: %[4]d}]
`

// Deploy starts the test pods and waits until they run.
func (c *Cluster) Deploy(ctx context.Context) error {
	if _, err := c.Run(ctx, fmt.Sprintf(manifest, lab.TesterImage, TCPPort, UDPPort, HTTPPort), "apply", "-f", "-"); err != nil {
		return err
	}
	_, err := c.Run(ctx, "", "rollout", "status", "daemonset/tester", "--timeout=60s")
	return err
}

// Pods returns the test pods that run, by node.
func (c *Cluster) Pods(ctx context.Context) ([]Pod, error) {
	raw, err := c.Run(ctx, "", "get", "pods", "-l", "app=tester", "-o", "json")
	if err != nil {
		return nil, err
	}
	var list corev1.PodList
	if err := json.Unmarshal([]byte(raw), &list); err != nil {
		return nil, err
	}
	var pods []Pod
	for _, p := range list.Items {
		ip, err := netip.ParseAddr(p.Status.PodIP)
		if err != nil || !p.DeletionTimestamp.IsZero() {
			continue
		}
		pods = append(pods, Pod{Cluster: c, Name: p.Name, Node: p.Spec.NodeName, IP: ip})
	}
	slices.SortFunc(pods, func(a, b Pod) int { return cmp.Compare(a.Node, b.Node) })
	if len(pods) == 0 {
		return nil, errors.New("no test pod runs in " + c.Name)
	}
	return pods, nil
}

// Call calls an address from inside of the pod. The error says why there was no
// right answer.
func (p Pod) Call(ctx context.Context, protocol, address string) (Answer, error) {
	out, err := p.Cluster.Run(ctx, "", "exec", p.Name, "--", "/tester", "call", protocol, address)
	var a Answer
	if line, _, _ := strings.Cut(out, "\n"); line != "" {
		if jsonErr := json.Unmarshal([]byte(line), &a); jsonErr != nil {
			return a, fmt.Errorf("%s calls %s %s: %w", p, protocol, address, errors.Join(err, jsonErr))
		}
	}
	switch {
	case a.Error != "":
		return a, fmt.Errorf("%s calls %s %s: %s", p, protocol, address, a.Error)
	case err != nil:
		return a, fmt.Errorf("%s calls %s %s: %w", p, protocol, address, err)
	default:
		return a, nil
	}
}

// Target is the address and port of a protocol's server in a test pod.
func Target(protocol string, addr netip.Addr) string {
	switch protocol {
	case "tcp":
		return netip.AddrPortFrom(addr, TCPPort).String()
	case "udp":
		return netip.AddrPortFrom(addr, UDPPort).String()
	case "http":
		return netip.AddrPortFrom(addr, HTTPPort).String()
	default:
		return addr.String()
	}
}

// Contact is one call between two pods.
type Contact struct {
	From, To Pod
	Protocol string
	// Address is by which From called To.
	Address netip.Addr
	Answer  Answer
	Err     error
}

// EveryToEvery has every pod of one list call every pod of the other by each
// protocol. address tells by which address a caller knows a pod.
func EveryToEvery(ctx context.Context, from, to []Pod, protocols []string, address func(Pod) netip.Addr) []Contact {
	var out []Contact
	for _, f := range from {
		for _, t := range to {
			for _, protocol := range protocols {
				out = append(out, Contact{From: f, To: t, Protocol: protocol, Address: address(t)})
			}
		}
	}
	var calls errgroup.Group
	calls.SetLimit(4)
	for i := range out {
		calls.Go(func() error {
			c := &out[i]
			ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
			defer cancel()
			c.Answer, c.Err = c.From.Call(ctx, c.Protocol, Target(c.Protocol, c.Address))
			if c.Err == nil && c.Answer.Server != nil && c.Answer.Server.Hostname != c.To.Name {
				c.Err = fmt.Errorf("%s called %s at %s and got an answer of %s", c.From, c.To, c.Address, c.Answer.Server.Hostname)
			}
			return nil
		})
	}
	_ = calls.Wait() // each call has its error
	return out
}
