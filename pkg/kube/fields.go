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

// FieldConflict is a field of one object that another manager has set.
type FieldConflict struct {
	Object, Field, Manager string
	// Path is the path of the field if its value is preserved.
	Path []string
}

// conflictManager matches how an API server names the manager of a field.
var conflictManager = regexp.MustCompile(`conflict with "([^"]*)"`)

// Conflicts returns the fields that other managers have set, from the error of applying without force. It omits fields of our
// own commands and agents, but isConflict is true for them too.
func Conflicts(obj client.Object, err error) (fields []FieldConflict, isConflict bool) {
	status := apierrors.APIStatus(nil)
	if !apierrors.IsConflict(err) || !errors.As(err, &status) || status.Status().Details == nil {
		return nil, false
	}
	for _, cause := range status.Status().Details.Causes {
		if cause.Type != metav1.CauseTypeFieldManagerConflict {
			continue
		}
		isConflict = true
		f := FieldConflict{Object: Describe(obj), Field: cause.Field, Manager: "somebody"}
		if m := conflictManager.FindStringSubmatch(cause.Message); m != nil {
			f.Manager = m[1]
		}
		if !strings.HasPrefix(f.Manager, v1alpha1.FieldManager) { // commands and agents
			fields = append(fields, f)
		}
	}
	return fields, isConflict
}

type noticesKey struct{}

// WithNotices reports at once what a command does to fields of other managers. The function report must be safe for
// concurrent use.
func WithNotices(ctx context.Context, report func(string)) context.Context {
	return context.WithValue(ctx, noticesKey{}, report)
}

// Notice reports what happens to fields of other managers.
func (c *Cluster) Notice(ctx context.Context, fields []FieldConflict, becomes string) {
	report, wanted := ctx.Value(noticesKey{}).(func(string))
	for _, f := range fields {
		if wanted {
			report(fmt.Sprintf("%s: %s: %s was set by %q, and %s", c.Name, f.Object, f.Field, f.Manager, becomes))
		}
	}
}
