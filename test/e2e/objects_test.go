package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
)

// selection says which objects are looked for.
type selection func(*unstructured.Unstructured) bool

// managed are the objects that the product calls its own.
func managed(u *unstructured.Unstructured) bool {
	return u.GetLabels()["app.kubernetes.io/managed-by"] == "liqonet" ||
		u.GetName() == "liqonet-system" && u.GetKind() == "Namespace" ||
		strings.HasSuffix(u.GetName(), ".liqonet.io") && u.GetKind() == "CustomResourceDefinition"
}

// mentioned are all objects that contain the product's name anywhere: those that
// the product made, and those that Kubernetes made because of them.
func mentioned(u *unstructured.Unstructured) bool {
	about, _, _ := unstructured.NestedString(u.Object, "involvedObject", "kind")
	if u.GetKind() == "IPAddress" || about == "IPAddress" {
		// The API server's book of the Services' addresses. If a request to create a
		// Service is cut off, it forgets an entry there, and repairs that in a minute.
		return false
	}
	if u.GetKind() == "Node" {
		// A node lists the images that it has, and the agents' stays.
		u = u.DeepCopy()
		unstructured.RemoveNestedField(u.Object, "status", "images")
	}
	raw, err := json.Marshal(u)
	return err != nil || strings.Contains(string(raw), "liqonet")
}

// objects returns the selected objects of a cluster, of all kinds that it has,
// as "Kind namespace/name".
func (c *cluster) objects(ctx context.Context, wanted selection) (map[string]*unstructured.Unstructured, error) {
	lists, err := c.discovery.ServerPreferredResources()
	// A kind that is being removed may not be found: then it has no objects.
	if groups := (*discovery.ErrGroupDiscoveryFailed)(nil); err != nil && !errors.As(err, &groups) {
		return nil, fmt.Errorf("cluster %s: discover the kinds of the API: %w", c.Name, err)
	}
	var mu sync.Mutex
	out := map[string]*unstructured.Unstructured{}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(8)
	for _, l := range lists {
		gv, err := schema.ParseGroupVersion(l.GroupVersion)
		if err != nil {
			return nil, err
		}
		for _, r := range l.APIResources {
			// Events of the newer group are the same ones.
			if !slices.Contains(r.Verbs, "list") || gv.Group == "events.k8s.io" {
				continue
			}
			group.Go(func() error {
				list, err := c.dynamic.Resource(gv.WithResource(r.Name)).List(ctx, metav1.ListOptions{})
				if apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err) {
					return nil
				}
				if err != nil {
					return fmt.Errorf("cluster %s: list %s: %w", c.Name, r.Name, err)
				}
				mu.Lock()
				defer mu.Unlock()
				for i := range list.Items {
					if u := &list.Items[i]; wanted(u) {
						out[key(u)] = u
					}
				}
				return nil
			})
		}
	}
	return out, group.Wait()
}

func key(u *unstructured.Unstructured) string {
	if u.GetNamespace() == "" {
		return u.GetKind() + " " + u.GetName()
	}
	return u.GetKind() + " " + u.GetNamespace() + "/" + u.GetName()
}

// objectsLeft lists the objects of the clusters, or of all, that the product calls its
// own, and the others that contain its name.
func (f *fixture) objectsLeft(ctx context.Context, clusters ...*cluster) (ours, others string) {
	if len(clusters) == 0 {
		clusters = f.clusters
	}
	lines := make([][2]string, len(clusters))
	var wg sync.WaitGroup
	for i, c := range clusters {
		wg.Go(func() {
			left, err := c.objects(ctx, mentioned)
			if err != nil {
				lines[i][1] = err.Error() + "\n"
			}
			for _, name := range slices.Sorted(maps.Keys(left)) {
				whose := 1
				if managed(left[name]) {
					whose = 0
				}
				lines[i][whose] += c.Name + ": " + name + "\n"
			}
		})
	}
	wg.Wait()
	for _, l := range lines {
		ours, others = ours+l[0], others+l[1]
	}
	return ours, others
}

// ours are the objects of clusters that the product calls its own.
func (f *fixture) ours(ctx context.Context, clusters ...*cluster) string {
	ours, _ := f.objectsLeft(ctx, clusters...)
	return ours
}

// fixed is what of an object may not change when nothing is changed: all but
// what is reported in its status. A kind without a status is compared with its
// resourceVersion.
func fixed(u *unstructured.Unstructured) string {
	u = u.DeepCopy()
	if strings.HasPrefix(u.GetName(), v1alpha1.HistoryPrefix) { // its agent fills it
		unstructured.RemoveNestedField(u.Object, "data")
		unstructured.RemoveNestedField(u.Object, "metadata", "resourceVersion")
		u.SetManagedFields(nil)
	}
	if _, has := u.Object["status"]; has {
		unstructured.RemoveNestedField(u.Object, "status")
		unstructured.RemoveNestedField(u.Object, "metadata", "resourceVersion")
		var fields []metav1.ManagedFieldsEntry
		for _, f := range u.GetManagedFields() {
			if f.Subresource == "" {
				fields = append(fields, f)
			}
		}
		u.SetManagedFields(fields)
	}
	raw, err := json.Marshal(u)
	if err != nil {
		return err.Error()
	}
	return string(raw)
}

// isRecord says that an object is a node's history, which is made when something has changed there.
func isRecord(u *unstructured.Unstructured) bool {
	return u.GetKind() == "ConfigMap" && strings.HasPrefix(u.GetName(), v1alpha1.NodeHistoryName(""))
}

// passing are objects that come and go by themselves.
func passing(u *unstructured.Unstructured) bool {
	return u.GetKind() == "Event" || u.GetKind() == "Node" || u.GetKind() == "Lease" || isRecord(u)
}
