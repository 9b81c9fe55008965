package kube

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
)

// OthersField is a field of one object that another manager has set.
type OthersField struct {
	Object, Field, Manager string
	// Path is the path of the field if its value is preserved.
	Path []string
}

// conflictWith matches how an API server names the manager of a field.
var conflictWith = regexp.MustCompile(`conflict with "([^"]*)"`)

// Conflicts returns the fields that other managers have set, from the error of applying without force. It omits fields of our
// own commands and agents, but are is true for them too.
func Conflicts(obj client.Object, err error) (fields []OthersField, are bool) {
	status := apierrors.APIStatus(nil)
	if !apierrors.IsConflict(err) || !errors.As(err, &status) || status.Status().Details == nil {
		return nil, false
	}
	for _, cause := range status.Status().Details.Causes {
		if cause.Type != metav1.CauseTypeFieldManagerConflict {
			continue
		}
		are = true
		f := OthersField{Object: Describe(obj), Field: cause.Field, Manager: "somebody"}
		if m := conflictWith.FindStringSubmatch(cause.Message); m != nil {
			f.Manager = m[1]
		}
		if !strings.HasPrefix(f.Manager, v1alpha1.FieldManager) { // commands and agents
			fields = append(fields, f)
		}
	}
	return fields, are
}

type noticesKey struct{}

// WithNotices reports at once what a command does to fields of other managers. The function tell must be safe for
// concurrent use.
func WithNotices(ctx context.Context, tell func(string)) context.Context {
	return context.WithValue(ctx, noticesKey{}, tell)
}

// Notice reports what happens to fields of other managers.
func (c *Cluster) Notice(ctx context.Context, fields []OthersField, becomes string) {
	tell, wanted := ctx.Value(noticesKey{}).(func(string))
	for _, f := range fields {
		if wanted {
			tell(fmt.Sprintf("%s: %s: %s was set by %q, and %s", c.Name, f.Object, f.Field, f.Manager, becomes))
		}
	}
}
