package peering

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
)

// LogLevel is from which level on some agents of a cluster log.
type LogLevel struct {
	// Agents says which ones.
	Agents string
	// Level is empty if nothing is said: then they log as they were started.
	Level string
}

// LogLevels returns the levels of the cluster's node agents and of each peering's gateways.
func (c *Cluster) LogLevels(ctx context.Context) (out []LogLevel, err error) {
	objs, err := c.withLogLevel(ctx)
	for _, o := range objs {
		l := LogLevel{"node agents", o.GetAnnotations()[v1alpha1.AnnotationLogLevel]}
		if p, ok := o.(*v1alpha1.Peering); ok {
			l.Agents = "gateways of " + p.Name
		}
		out = append(out, l)
	}
	return out, err
}

// SetLogLevel changes the level of all agents of the cluster, while they run. An empty one takes the change back.
func (c *Cluster) SetLogLevel(ctx context.Context, level string) error {
	objs, err := c.withLogLevel(ctx)
	if err != nil {
		return err
	}
	if err := c.checkVersion(ctx); err != nil {
		return err
	}
	for _, o := range objs {
		changed := o.DeepCopyObject().(client.Object)
		annotations := changed.GetAnnotations()
		if annotations == nil {
			annotations = map[string]string{}
		}
		if annotations[v1alpha1.AnnotationLogLevel] = level; level == "" {
			delete(annotations, v1alpha1.AnnotationLogLevel)
		}
		changed.SetAnnotations(annotations)
		// By another manager than that of what is applied, which would take it away.
		err := c.Client.Patch(ctx, changed, client.MergeFrom(o), client.FieldOwner(v1alpha1.FieldManager+"-log-level"))
		if client.IgnoreNotFound(err) != nil {
			return c.fail(fmt.Sprintf("change the log level by %s", describe(o)), err)
		}
	}
	return nil
}

// withLogLevel are the objects by which agents know their level.
func (c *Cluster) withLogLevel(ctx context.Context) ([]client.Object, error) {
	namespace, err := get[corev1.Namespace](ctx, c, "", v1alpha1.Namespace)
	if err != nil {
		return nil, err
	}
	if namespace == nil {
		return nil, &Error{Kind: Usage, Cluster: c.Name, Doing: "find the agents", Err: errors.New("there are none: it is not peered"), Hint: "peer it first"}
	}
	var peerings v1alpha1.PeeringList
	if err := c.list(ctx, &peerings); err != nil {
		return nil, err
	}
	objs, err := items(&peerings)
	return append([]client.Object{namespace}, objs...), err
}
