package discovery_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/liqonet/liqonet/pkg/discovery"
	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/plan"
	"github.com/liqonet/liqonet/test/kit"
)

func podWith(name, ip string, change func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec:       corev1.PodSpec{NodeName: "worker-1"},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning, PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}}},
	}
	if change != nil {
		change(p)
	}
	return p
}

func discover(t *testing.T, o discovery.Overrides, row string, more ...client.Object) (plan.Network, error) {
	t.Helper()
	o.Name = "a"
	return discovery.Discover(context.Background(), cluster(t, append(load(t, row), more...), interceptor.Funcs{}), o)
}

func TestPodOutsideOfTheRanges(t *testing.T) {
	_, err := discover(t, discovery.Overrides{}, "kubeadm", podWith("stray", "192.168.7.7", nil), podWith("stray-2", "192.168.7.8", nil))
	kit.FatalIf(t, !errors.Is(err, discovery.ErrOutside), "got %v", err)
	for _, want := range []string{`cluster "a": pod default/stray has the address 192.168.7.7 (and 1 more)`, "10.50.0.0/17", "--pod-cidr a=10.50.0.0/17,RANGE-OF-192.168.7.7", "kubectl get pods -A -o wide"} {
		kit.ErrorIf(t, !strings.Contains(err.Error(), want), "got %q, want %q in it", err, want)
	}
	f, err := discover(t, discovery.Overrides{PodCIDRs: []netip.Prefix{pfx("10.244.0.0/16"), pfx("192.168.7.0/24")}}, "bridge", podWith("stray", "192.168.7.7", nil))
	kit.ErrorIf(t, err != nil || len(f.PodCIDRs) != 2 || f.PodCIDRs[0].Source != "given by --pod-cidr", "got %v, %v", f.PodCIDRs, err)
	// If the range was inferred from the nodes' podCIDRs, agents may have better information.
	f, err = discover(t, discovery.Overrides{}, "bridge", podWith("stray", "192.168.7.7", nil))
	if err != nil || !errors.Is(f.PodsUnknown, discovery.ErrOutside) || len(f.PodCIDRs) != 0 || !slices.Contains(f.PodAddrs, netip.MustParseAddr("192.168.7.7")) {
		t.Errorf("got %v, unknown %v, pods %v", err, f.PodsUnknown, f.PodAddrs)
	}
	// Given ranges are compared as well.
	_, err = discover(t, discovery.Overrides{PodCIDRs: []netip.Prefix{pfx("10.244.1.0/24")}}, "bridge")
	kit.ErrorIf(t, !errors.Is(err, discovery.ErrOutside), "got %v", err)
}

func TestPodsThatDoNotCount(t *testing.T) {
	now := metav1.Now()
	f := kit.Must(discover(
		t, discovery.Overrides{}, "bridge",
		podWith("host", "172.30.1.11", func(p *corev1.Pod) { p.Spec.HostNetwork = true }),
		podWith("failed", "192.168.7.7", func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }),
		podWith("going", "192.168.7.7", func(p *corev1.Pod) { p.DeletionTimestamp, p.Finalizers = &now, []string{"x/y"} }),
		podWith("starting", "", nil),
		podWith("elsewhere", "192.168.7.7", func(p *corev1.Pod) { p.Spec.NodeName = "virtual" }),
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "virtual", Labels: map[string]string{"type": "virtual-kubelet"}}, Spec: corev1.NodeSpec{PodCIDR: "10.9.0.0/24"}},
	))(t)
	kit.ErrorIf(t, f.PodsUnknown != nil || len(f.Nodes) != 2, "got %v, %d nodes", f.PodsUnknown, len(f.Nodes))
}

func TestServiceOutsideOfTheRanges(t *testing.T) {
	_, err := discover(t, discovery.Overrides{}, "bridge", &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "stray"},
		Spec:       corev1.ServiceSpec{ClusterIP: "10.200.0.1", ClusterIPs: []string{"10.200.0.1"}},
	})
	if !errors.Is(err, discovery.ErrOutside) || !strings.Contains(err.Error(), "service default/stray") || !strings.Contains(err.Error(), "--service-cidr a=10.96.0.0/16,") {
		t.Errorf("got %v", err)
	}
}

func TestOverrides(t *testing.T) {
	f, err := discover(t, discovery.Overrides{
		ServiceCIDRs: []netip.Prefix{pfx("10.96.0.0/12")},
		NodeCIDRs:    []netip.Prefix{pfx("172.30.0.0/16")},
		Reserved:     []netip.Prefix{pfx("10.0.0.0/12")},
	}, "bridge")
	kit.NoError(t, err)
	got := fmt.Sprint(ranges(f.ServiceCIDRs), ranges(f.NodeCIDRs), ranges(f.Reserved))
	kit.ErrorIf(t, got != "[10.96.0.0/12] [172.30.0.0/16] [10.0.0.0/12]", "got %s", got)
	_, err = discover(t, discovery.Overrides{PodCIDRs: []netip.Prefix{pfx("10.244.0.1/16")}}, "bridge")
	if !errors.Is(err, ipam.ErrInvalid) || !strings.Contains(err.Error(), "--pod-cidr") || !strings.Contains(err.Error(), "did you mean 10.244.0.0/16?") {
		t.Errorf("got %v", err)
	}
}

func TestUnknown(t *testing.T) {
	without := func(row string, drop func(client.Object) bool) []client.Object {
		var out []client.Object
		for _, o := range load(t, row) {
			if !drop(o) {
				out = append(out, o)
			}
		}
		return out
	}
	for _, c := range []struct {
		name    string
		objects []client.Object
		want    []string
	}{
		{
			"Azure CNI without configuration", without("aks-azure-cni", func(o client.Object) bool { _, ok := o.(*corev1.ConfigMap); return ok }),
			[]string{"range of the pods", "--pod-cidr a=", "az network vnet subnet show"},
		},
		{
			"EKS with custom networking and no pods", without("eks-custom-networking", func(o client.Object) bool { return o.GetName() == "coredns-1" }),
			[]string{"range of the pods", "--pod-cidr a=", "aws ec2 describe-subnets"},
		},
		{
			"no podCIDR, and nothing of the plugin", without("openshift", func(o client.Object) bool { return o.GetObjectKind().GroupVersionKind().Kind == "Network" }),
			[]string{"range of the pods", "--pod-cidr a=", "--cluster-cidr"},
		},
		{
			"no services", without("eks", func(o client.Object) bool { _, ok := o.(*corev1.Service); return ok }),
			[]string{"range of the services", "--service-cidr a=", "aws eks describe-cluster"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, err := discovery.Discover(context.Background(), cluster(t, c.objects, interceptor.Funcs{}), discovery.Overrides{Name: "a"})
			if f.PodsUnknown != nil {
				err = f.PodsUnknown
			}
			kit.FatalIf(t, !errors.Is(err, discovery.ErrUnknown), "got %v", err)
			// The warning about a family that is not exchanged is not for pods whose range is unknown.
			kit.ErrorIf(t, len(f.Warnings) > 0, "warnings: %q", f.Warnings)
			for _, want := range c.want {
				kit.ErrorIf(t, !strings.Contains(err.Error(), want), "got %q, want %q in it", err, want)
			}
		})
	}
}

// TestErrorsOfTheAPI checks that required sources fail and keep their class, and that optional ones do not matter.
func TestErrorsOfTheAPI(t *testing.T) {
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "x"}, "", errors.New("no"))
	failing := func(err error, matches func(any) bool) interceptor.Funcs {
		return interceptor.Funcs{
			List: func(ctx context.Context, c client.WithWatch, l client.ObjectList, opts ...client.ListOption) error {
				if matches(l) {
					return err
				}
				return c.List(ctx, l, opts...)
			},
			Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
				if matches(o) {
					return err
				}
				return c.Get(ctx, key, o, opts...)
			},
		}
	}
	all := func(any) bool { return true }
	optional := func(o any) bool {
		switch o.(type) {
		case *corev1.NodeList, *corev1.PodList, *corev1.ServiceList, *corev1.Namespace:
			return false
		}
		return true
	}
	foreign := func(o any) bool { _, ok := o.(*unstructured.UnstructuredList); return ok }

	_, err := discovery.Discover(context.Background(), cluster(t, load(t, "bridge"), failing(forbidden, all)), discovery.Overrides{Name: "a"})
	kit.ErrorIf(t, !apierrors.IsForbidden(err), "got %v, want forbidden", err)
	_, err = discovery.Discover(context.Background(), cluster(t, load(t, "bridge"), failing(syscall.ECONNREFUSED, all)), discovery.Overrides{Name: "a"})
	kit.ErrorIf(t, !errors.Is(err, syscall.ECONNREFUSED), "got %v, want refused", err)
	_, err = discovery.Discover(context.Background(), cluster(t, load(t, "bridge"), failing(syscall.ECONNREFUSED, optional)), discovery.Overrides{Name: "a"})
	kit.ErrorIf(t, !errors.Is(err, syscall.ECONNREFUSED), "got %v, want refused also for optional sources", err)
	f, err := discovery.Discover(context.Background(), cluster(t, load(t, "bridge"), failing(forbidden, optional)), discovery.Overrides{Name: "a"})
	if err != nil || fmt.Sprint(ranges(f.PodCIDRs), ranges(f.ServiceCIDRs)) != "[10.244.0.0/16?] [10.96.0.0/12?]" || len(f.Warnings) != 1 {
		t.Errorf("got %+v, %v", f, err)
	}
	for _, missing := range []error{
		apierrors.NewServiceUnavailable("aggregated API server is down"),
		&meta.NoKindMatchError{GroupKind: schema.GroupKind{Group: "crd.projectcalico.org", Kind: "IPPool"}},
		apierrors.NewNotFound(schema.GroupResource{}, ""),
	} {
		// Without its pools, only the nodes' ranges are known of a Calico cluster, and its pods are outside these.
		f, err = discovery.Discover(context.Background(), cluster(t, load(t, "calico"), failing(missing, foreign)), discovery.Overrides{Name: "a"})
		kit.ErrorIf(t, err != nil || !errors.Is(f.PodsUnknown, discovery.ErrOutside) || len(f.PodCIDRs) != 0 || len(f.PodAddrs) == 0,
			"%v: got %v, unknown %v, ranges %v, pods %v", missing, err, f.PodsUnknown, f.PodCIDRs, f.PodAddrs)
	}
}

// A Service of type LoadBalancer without an address means that there are no load balancers.
func TestNoLoadBalancers(t *testing.T) {
	f, err := discover(t, discovery.Overrides{}, "bridge", &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "lb"},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, ClusterIP: "10.96.7.7", ClusterIPs: []string{"10.96.7.7"}},
	})
	kit.ErrorIf(t, err != nil || f.LoadBalancers.Value != plan.No, "got %+v, %v", f.LoadBalancers, err)
}

// TestRoundTrips checks that a discovery takes as long as two consecutive requests, plus further pages of pods,
// regardless of the number of requests.
func TestRoundTrips(t *testing.T) {
	const latency = 50 * time.Millisecond
	var requests, pages atomic.Int32
	var mu sync.Mutex
	var objects []client.Object
	for i := range 2500 {
		objects = append(objects, podWith(fmt.Sprintf("p%04d", i), fmt.Sprintf("10.12.%d.%d", i/250, i%250+1), nil))
	}
	objects = append(objects, podWith("p2500", "192.168.7.7", nil))
	r := cluster(t, append(load(t, "cilium"), objects...), interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, l client.ObjectList, opts ...client.ListOption) error {
			requests.Add(1)
			time.Sleep(latency)
			mu.Lock()
			defer mu.Unlock()
			if err := c.List(ctx, l, opts...); err != nil {
				return err
			}
			// The fake client does not support pages.
			if pods, ok := l.(*corev1.PodList); ok {
				o := client.ListOptions{}
				o.ApplyOptions(opts)
				from := 0
				if o.Continue != "" {
					_, _ = fmt.Sscan(o.Continue, &from)
				}
				to := min(from+int(o.Limit), len(pods.Items))
				if to < len(pods.Items) {
					pods.Continue = fmt.Sprint(to)
				}
				pods.Items = pods.Items[from:to]
				pages.Add(1)
			}
			return nil
		},
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			requests.Add(1)
			time.Sleep(latency)
			return c.Get(ctx, key, o, opts...)
		},
	})
	start := time.Now()
	_, err := discovery.Discover(context.Background(), r, discovery.Overrides{Name: "a"})
	took := time.Since(start)
	// The last one is on the last page.
	kit.FatalIf(t, !errors.Is(err, discovery.ErrOutside) || !strings.Contains(err.Error(), "pod default/p2500"), "got %v", err)
	t.Logf("%d requests, %d pages of pods, %v with %v of latency", requests.Load(), pages.Load(), took, latency)
	kit.ErrorIf(t, requests.Load() > 15 || pages.Load() != 3, "got %d requests, %d pages", requests.Load(), pages.Load())
}
