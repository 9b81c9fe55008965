// Package kubeapi is the little of a Kubernetes client that the lab needs:
// readiness, reading an object, and following the nodes.
//
// It exists so that the lab's binary stays small and quick to build; tests of
// the product use client-go.
package kubeapi

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"time"
)

// Client talks to one API server with a client certificate.
type Client struct {
	server string
	http   *http.Client
}

// New returns a client of the API server at the given URL. The authority, the
// certificate and its key are PEM.
func New(server string, authority, certificate, key []byte) (*Client, error) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(authority) {
		return nil, errors.New("no certificate authority in PEM")
	}
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return nil, fmt.Errorf("load client certificate: %w", err)
	}
	return &Client{
		server: strings.TrimSuffix(server, "/"),
		http: &http.Client{Transport: &http.Transport{
			TLSClientConfig:       &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12},
			ResponseHeaderTimeout: 10 * time.Second,
			IdleConnTimeout:       30 * time.Second,
		}},
	}, nil
}

// StatusError is an answer of the API server other than success.
type StatusError struct {
	Code int
	Body string
}

// Error implements error.
func (e *StatusError) Error() string {
	return fmt.Sprintf("HTTP %d: %s", e.Code, strings.TrimSpace(e.Body))
}

func (c *Client) do(ctx context.Context, method, path, contentType string, body []byte) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.server+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode/100 != 2 {
		defer resp.Body.Close()
		// Only for the message: what cannot be read is not shown.
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1024))
		return nil, fmt.Errorf("%s %s: %w", method, path, &StatusError{resp.StatusCode, string(text)})
	}
	return resp, nil
}

// Ready returns nil if the API server calls itself ready.
func (c *Client) Ready(ctx context.Context) error {
	return c.Get(ctx, "/readyz", nil)
}

// Get reads the object at path into the value, which may be nil.
func (c *Client) Get(ctx context.Context, path string, into any) error {
	resp, err := c.do(ctx, http.MethodGet, path, "", nil)
	if err != nil {
		return err
	}
	return decode(resp, into)
}

// Patch changes the object at path by a strategic merge patch.
func (c *Client) Patch(ctx context.Context, path string, patch any) error {
	body, err := json.Marshal(patch)
	if err != nil {
		return err
	}
	resp, err := c.do(ctx, http.MethodPatch, path, "application/strategic-merge-patch+json", body)
	if err != nil {
		return err
	}
	return decode(resp, nil)
}

// Delete deletes the object at path. That there is none is no error.
func (c *Client) Delete(ctx context.Context, path string) error {
	resp, err := c.do(ctx, http.MethodDelete, path, "", nil)
	var status *StatusError
	if errors.As(err, &status) && status.Code == http.StatusNotFound {
		return nil
	}
	if err != nil {
		return err
	}
	return decode(resp, nil)
}

func decode(resp *http.Response, into any) error {
	defer resp.Body.Close()
	if into == nil {
		_, err := io.Copy(io.Discard, resp.Body)
		return err
	}
	return json.NewDecoder(resp.Body).Decode(into)
}

// PodCIDRLabel is the label of Nodes that have no spec.podCIDR with their pods'
// range.
const PodCIDRLabel = "lab.local/pod-cidr"

// LabelOf is a range as a label's value, which must not have a slash.
func LabelOf(p netip.Prefix) string { return strings.ReplaceAll(p.String(), "/", "_") }

// Node is what the lab wants to know of a node.
type Node struct {
	Name     string
	PodCIDR  netip.Prefix // invalid until assigned
	Internal netip.Addr   // the InternalIP; invalid until reported
	Ready    bool
	Message  string // why the node is not ready, in the kubelet's words
}

// FollowNodes calls changed with all nodes, now and after each change, until
// the context ends or changed returns false. A broken connection is made
// again; only the context's end is an error.
func (c *Client) FollowNodes(ctx context.Context, changed func(map[string]Node) bool) error {
	for {
		done, _ := c.followNodesOnce(ctx, changed)
		if done {
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

func (c *Client) followNodesOnce(ctx context.Context, changed func(map[string]Node) bool) (bool, error) {
	var list struct {
		Metadata struct {
			ResourceVersion string `json:"resourceVersion"`
		} `json:"metadata"`
		Items []apiNode `json:"items"`
	}
	if err := c.Get(ctx, "/api/v1/nodes", &list); err != nil {
		return false, err
	}
	nodes := map[string]Node{}
	for _, n := range list.Items {
		nodes[n.Metadata.Name] = n.summary()
	}
	if !changed(nodes) {
		return true, nil
	}
	resp, err := c.do(ctx, http.MethodGet, "/api/v1/nodes?watch=true&resourceVersion="+list.Metadata.ResourceVersion, "", nil)
	if err != nil {
		return false, err
	}
	defer resp.Body.Close()
	for events := json.NewDecoder(resp.Body); ; {
		var event struct {
			Type   string  `json:"type"`
			Object apiNode `json:"object"`
		}
		if err := events.Decode(&event); err != nil {
			return false, err
		}
		switch event.Type {
		case "ADDED", "MODIFIED":
			nodes[event.Object.Metadata.Name] = event.Object.summary()
		case "DELETED":
			delete(nodes, event.Object.Metadata.Name)
		case "ERROR": // the version is too old: list again
			return false, nil
		default: // BOOKMARK
			continue
		}
		if !changed(nodes) {
			return true, nil
		}
	}
}

type apiNode struct {
	Metadata struct {
		Name   string            `json:"name"`
		Labels map[string]string `json:"labels"`
	} `json:"metadata"`
	Spec struct {
		PodCIDR string `json:"podCIDR"`
	} `json:"spec"`
	Status struct {
		Addresses []struct {
			Type    string `json:"type"`
			Address string `json:"address"`
		} `json:"addresses"`
		Conditions []struct {
			Type    string `json:"type"`
			Status  string `json:"status"`
			Message string `json:"message"`
		} `json:"conditions"`
	} `json:"status"`
}

func (n apiNode) summary() Node {
	node := Node{Name: n.Metadata.Name, Message: "no status yet"}
	// What does not parse stays invalid, which means "not known yet".
	cidr := cmp.Or(n.Spec.PodCIDR, strings.ReplaceAll(n.Metadata.Labels[PodCIDRLabel], "_", "/"))
	node.PodCIDR, _ = netip.ParsePrefix(cidr)
	for _, a := range n.Status.Addresses {
		if a.Type == "InternalIP" {
			node.Internal, _ = netip.ParseAddr(a.Address)
		}
	}
	for _, c := range n.Status.Conditions {
		if c.Type == "Ready" {
			node.Ready, node.Message = c.Status == "True", c.Message
		}
	}
	return node
}
