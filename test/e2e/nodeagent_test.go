package e2e

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
)

// Whoever took over a node agent, or has a token of the agents' account from elsewhere,
// writes nothing of other nodes. Requests are dry runs, which are admitted or refused
// as others are.
func nodeAgentWritesItsOwn(t *testing.T, ctx context.Context, c *cluster) {
	pods, err := c.Run(ctx, "", "-n", v1alpha1.Namespace, "get", "pods", "-l", "app.kubernetes.io/component=node", "-o",
		"jsonpath={range .items[*]}{.metadata.name} {.spec.nodeName}{\"\\n\"}{end}")
	if err != nil {
		t.Fatal(err)
	}
	var pod, node string
	if _, err := fmt.Sscan(pods, &pod, &node); err != nil {
		t.Fatalf("%v in %q", err, pods)
	}
	networks := v1alpha1.GroupVersion.WithResource("nodenetworks")
	list, err := c.dynamic.Resource(networks).List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var own, other v1alpha1.NodeNetwork
	for _, item := range list.Items {
		n := &other
		if item.GetName() == node {
			n = &own
		}
		address, _, _ := unstructured.NestedString(item.Object, "status", "address")
		n.Name, n.Status.Address.Addr = item.GetName(), netip.MustParseAddr(address)
	}
	if own.Name == "" || other.Name == "" {
		t.Fatalf("nodes of %s: own %+v, other %+v", node, own, other)
	}

	client := func(args ...string) dynamic.Interface {
		token, err := c.Run(ctx, "", append([]string{"-n", v1alpha1.Namespace, "create", "token", v1alpha1.NodeAgentName}, args...)...)
		if err != nil {
			t.Fatal(err)
		}
		admin, err := c.restConfig()
		if err != nil {
			t.Fatal(err)
		}
		cfg := rest.AnonymousClientConfig(admin)
		cfg.BearerToken = strings.TrimSpace(token)
		d, err := dynamic.NewForConfig(cfg)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	dryRun := []string{metav1.DryRunAll}
	leases := coordinationv1.SchemeGroupVersion.WithResource("leases")
	requests := map[string]func(d dynamic.Interface, n v1alpha1.NodeNetwork) error{
		"status": func(d dynamic.Interface, n v1alpha1.NodeNetwork) error {
			_, err := d.Resource(networks).Patch(ctx, n.Name, types.MergePatchType, []byte(`{"status":{"underlayMTU":1}}`), metav1.PatchOptions{DryRun: dryRun}, "status")
			return err
		},
		"labels": func(d dynamic.Interface, n v1alpha1.NodeNetwork) error {
			_, err := d.Resource(networks).Patch(ctx, n.Name, types.MergePatchType, []byte(`{"metadata":{"labels":{"x":"y"}}}`), metav1.PatchOptions{DryRun: dryRun})
			return err
		},
		"removal": func(d dynamic.Interface, n v1alpha1.NodeNetwork) error {
			return d.Resource(networks).Delete(ctx, n.Name, metav1.DeleteOptions{DryRun: dryRun})
		},
		"claim of an address": func(d dynamic.Interface, n v1alpha1.NodeNetwork) error {
			claim := &unstructured.Unstructured{Object: map[string]any{
				"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": map[string]any{"name": v1alpha1.NodeLease(netip.MustParseAddr("10.99.1.1"))},
				"spec": map[string]any{"holderIdentity": n.Name},
			}}
			_, err := d.Resource(leases).Namespace(v1alpha1.Namespace).Create(ctx, claim, metav1.CreateOptions{DryRun: dryRun})
			return err
		},
		"heartbeat": func(d dynamic.Interface, n v1alpha1.NodeNetwork) error {
			_, err := d.Resource(leases).Namespace(v1alpha1.Namespace).Patch(ctx, n.Lease(), types.MergePatchType,
				[]byte(`{"spec":{"holderIdentity":"`+node+`"}}`), metav1.PatchOptions{DryRun: dryRun})
			return err
		},
	}
	peerings := v1alpha1.GroupVersion.WithResource("peerings")
	known, err := c.dynamic.Resource(peerings).List(ctx, metav1.ListOptions{})
	if err != nil || len(known.Items) == 0 {
		t.Fatalf("no Peering: %v", err)
	}
	// tell changes what a Peering says of itself.
	tell := func(d dynamic.Interface, status, reason, message string) error {
		conditions, _, _ := unstructured.NestedSlice(known.Items[0].Object, "status", "conditions")
		var patch []string
		for i, c := range conditions {
			if of := c.(map[string]any)["type"]; of == v1alpha1.ConditionConnected || of == v1alpha1.ConditionReady {
				for field, value := range map[string]string{"status": status, "reason": reason, "message": message} {
					patch = append(patch, fmt.Sprintf(`{"op":"replace","path":"/status/conditions/%d/%s","value":%q}`, i, field, value))
				}
			}
		}
		_, err := d.Resource(peerings).Patch(ctx, known.Items[0].GetName(), types.JSONPatchType, []byte("["+strings.Join(patch, ",")+"]"), metav1.PatchOptions{DryRun: dryRun}, "status")
		return err
	}
	agent, unbound := client("--bound-object-kind=Pod", "--bound-object-name="+pod), client()
	if err := tell(agent, "Unknown", v1alpha1.ReasonGatewaysSilent, v1alpha1.MessageGatewaysSilent); err != nil {
		t.Errorf("say that gateways are silent: %v", err)
	}
	_, moved := agent.Resource(peerings).Patch(ctx, known.Items[0].GetName(), types.JSONPatchType,
		[]byte(`[{"op":"replace","path":"/status/planes/0/podIP","value":"10.9.9.9"}]`), metav1.PatchOptions{DryRun: dryRun}, "status")
	for what, err := range map[string]error{
		"with a token of no pod": tell(unbound, "Unknown", v1alpha1.ReasonGatewaysSilent, v1alpha1.MessageGatewaysSilent),
		"connected":              tell(agent, "True", "ProbesAnswered", "x"),
		"not connected":          tell(agent, "False", v1alpha1.ReasonGatewaysSilent, v1alpha1.MessageGatewaysSilent),
		"words of its own":       tell(agent, "Unknown", v1alpha1.ReasonGatewaysSilent, "call 555-0100"),
		"another gateway":        moved,
	} {
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "gateways are silent") {
			t.Errorf("status of a Peering, %s: got %v", what, err)
		}
	}
	for name, request := range requests {
		if err := request(agent, own); err != nil {
			t.Errorf("%s, its own node's: %v", name, err)
		}
		for whose, err := range map[string]error{"another node's": request(agent, other), "with a token of no pod": request(unbound, own)} {
			if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "the objects of its own node") {
				t.Errorf("%s, %s: got %v", name, whose, err)
			}
		}
	}
}

// The tokens that agents have are for the API server, and last a day. A token that
// Kubernetes mounts by itself would last a year.
func tokensOfAgents(t *testing.T, ctx context.Context, c *cluster) {
	pods, err := c.Run(ctx, "", "-n", "liqonet-system", "get", "pods", "-o", "jsonpath={range .items[*]}{.metadata.uid} {.spec.nodeName} {.metadata.name}{\"\\n\"}{end}")
	if err != nil {
		t.Fatal(err)
	}
	looked := 0
	for line := range strings.Lines(pods) {
		f := strings.Fields(line)
		i := slices.IndexFunc(c.nodes, func(n node) bool { return len(f) == 3 && n.Node.Name == f[1] })
		if i < 0 {
			t.Fatalf("pods are:\n%s", pods)
		}
		out, err := c.nodes[i].Node.Command(ctx, "sh", "-ec",
			"cd /var/lib/kubelet/pods/"+f[0]+"/volumes/kubernetes.io~projected; ls -d *; ls account; echo; cat */token").Output()
		if err != nil {
			t.Fatalf("%s: %v", f[2], err)
		}
		files, token, _ := strings.Cut(string(out), "\n\n")
		if got := strings.Fields(files); !slices.Equal(got, []string{"account", "overlay", "ca.crt", "token"}) {
			t.Errorf("%s has the files %q", f[2], got)
		}
		var claims struct {
			Issuer   string   `json:"iss"`
			Audience []string `json:"aud"`
			Expires  int64    `json:"exp"`
			Issued   int64    `json:"iat"`
		}
		parts := strings.Split(token, ".")
		if len(parts) != 3 {
			t.Fatalf("%s has no token", f[2])
		}
		raw, err := base64.RawURLEncoding.DecodeString(parts[1])
		if err == nil {
			err = json.Unmarshal(raw, &claims)
		}
		if err != nil {
			t.Fatal(err)
		}
		if len(claims.Audience) != 1 || claims.Audience[0] != claims.Issuer || claims.Expires-claims.Issued != 24*3600 {
			t.Errorf("%s has a token for %v, of %d s", f[2], claims.Audience, claims.Expires-claims.Issued)
		}
		looked++
	}
	if want := len(c.nodes) + 1; looked != want {
		t.Errorf("%d pods were looked at, want %d", looked, want)
	}
}
