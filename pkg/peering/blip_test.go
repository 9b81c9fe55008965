package peering

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/status"
	"github.com/liqonet/liqonet/pkg/version"
	"github.com/liqonet/liqonet/test/fakeapi"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/kubetest"
)

// served is a cluster behind an API server that can fail.
func served(t *testing.T, name, nodeAddress, pods string) (*kube.Cluster, *fakeapi.Server) {
	t.Helper()
	server := kit.Must(fakeapi.New(fakeapi.Objects("id-of-"+name, name+"-1", nodeAddress, pods)...))(t)
	t.Cleanup(server.Close)
	s := kubetest.Scheme(t)
	mapper := meta.NewDefaultRESTMapper(nil)
	for gvk := range s.AllKnownTypes() {
		switch gvk.Kind {
		case "Namespace", "Node", "ClusterRole", "ClusterRoleBinding", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "CustomResourceDefinition", "SelfSubjectAccessReview", "ClusterNetwork", "Peering", "NodeNetwork":
			mapper.Add(gvk, meta.RESTScopeRoot)
		default:
			mapper.Add(gvk, meta.RESTScopeNamespace)
		}
	}
	c, err := client.NewWithWatch(&rest.Config{Host: server.URL, QPS: -1, WrapTransport: kube.RetryTransport}, client.Options{Scheme: s, Mapper: mapper})
	kit.NoError(t, err)
	return &kube.Cluster{Name: name, ID: "id-of-" + name, Client: c, DefaultImage: "image:1", Version: version.String(), Now: time.Now, Discovery: kubetest.NewCluster(t, name, interceptor.Funcs{}).Discovery}, server
}

// A short outage of an API server does not fail peer, in any step, and does not cause more requests.
func TestBlipOfAPIServerFailsNoPeer(t *testing.T) {
	kit.Play(t)
	a, serverA := served(t, "a", "172.18.1.11", "10.244.0.0/16")
	b, serverB := served(t, "b", "172.18.2.11", "10.244.0.0/16")
	const blip = 3 * time.Second
	// At the start of a step, and in the middle of one.
	o := Steps{
		"Installing the node agents":        func() { serverA.FailFor(blip) },
		"Pushing ranges, keys and gateways": func() { serverB.FailFor(blip) },
		"Waiting until packets pass":        func() { time.AfterFunc(10*time.Millisecond, func() { serverA.FailFor(blip) }) },
		"Removing the peering of a and b":   func() { t.Error("it was rolled back") },
		"Rolling back the changes":          func() { t.Error("it was put back") },
	}
	start := time.Now()
	kit.Must(Peer(t.Context(), a, b, engine.Options{}, o))(t)
	took := time.Since(start)
	kit.ErrorIf(t, took < 2*blip, "it took %s: nothing failed", took)
	for _, s := range []*fakeapi.Server{serverA, serverB} {
		// Most of them are the requests of an undisturbed run.
		n := s.Requests()
		kit.ErrorIf(t, n > 400, "%d requests in %s", n, took)
	}
}

// Waits list once and then watch. Conditions that cannot be watched are checked less and less often.
func TestWaitingDoesNotPoll(t *testing.T) {
	t.Parallel()
	t.Run("watched", func(t *testing.T) {
		t.Parallel()
		c, server := served(t, "a", "172.18.1.11", "10.244.0.0/16")
		kinds := append(engine.RolloutKinds(), status.ViewKinds()...)
		ctx := kit.Timeout(t, 2*time.Second)
		looks := 0
		err := c.Await(ctx, "wait", "", kinds, func(context.Context, kube.Objects) (string, error) {
			looks++
			return "never", nil
		})
		kit.ErrorIf(t, kubetest.KindOf(t, err) != kube.NotReady || looks < 4, "after %d looks: %v", looks, err)
		n := server.Requests()
		kit.ErrorIf(t, n > 3*len(kinds), "%d requests for %d kinds", n, len(kinds))
	})
	t.Run("not watched", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			ctx := kit.Timeout(t, time.Minute)
			looks := 0
			err := kubetest.NewCluster(t, "a", interceptor.Funcs{}).Poll(ctx, "wait", "", func(context.Context) (string, error) {
				looks++
				return "never", nil
			})
			kit.ErrorIf(t, kubetest.KindOf(t, err) != kube.NotReady || looks < 50 || looks > 90, "after %d looks: %v", looks, err)
		})
	})
}
