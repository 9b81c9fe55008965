// Package schema tells what an API server takes, by the custom resource definitions and without an
// API server: with the libraries that one has. It makes values for every field of them.
//
// Out of scope: admission, and what only etcd or a client of it decides.
package schema

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	definitions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/util/json"
	celconfig "k8s.io/apiserver/pkg/apis/cel"

	"github.com/liqonet/liqonet/pkg/manifests"
)

// Kind is one of the custom resources, as an API server sees it.
type Kind struct {
	// Name is as in Peering.
	Name       string
	structural *structuralschema.Structural
	schema     validation.SchemaValidator
	rules      *cel.Validator
}

// Kinds are all of them by their names. It returns an error if an API server would refuse a
// definition, as for rules that could cost too much.
func Kinds(ctx context.Context) (map[string]*Kind, error) {
	out := map[string]*Kind{}
	for _, crd := range slices.Concat(manifests.CRDs(), manifests.ServicesCRDs()) {
		k, err := newKind(ctx, crd)
		if err != nil {
			return nil, fmt.Errorf("definition %s: %w", crd.Name, err)
		}
		out[k.Name] = k
	}
	return out, nil
}

func newKind(ctx context.Context, crd *apiextensionsv1.CustomResourceDefinition) (*Kind, error) {
	crd = crd.DeepCopy()
	apiextensionsv1.SetObjectDefaults_CustomResourceDefinition(crd)
	internal := &apiextensions.CustomResourceDefinition{}
	if err := apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(crd, internal, nil); err != nil {
		return nil, err
	}
	for _, v := range internal.Spec.Versions {
		internal.Status.StoredVersions = append(internal.Status.StoredVersions, v.Name)
	}
	if errs := definitions.ValidateCustomResourceDefinition(ctx, internal); len(errs) > 0 {
		return nil, errs.ToAggregate()
	}
	props, structural, err := Structural(crd)
	if err != nil {
		return nil, err
	}
	validator, _, err := validation.NewSchemaValidator(props)
	if err != nil {
		return nil, err
	}
	return &Kind{
		Name: crd.Spec.Names.Kind, structural: structural, schema: validator, rules: cel.NewValidator(structural, true, celconfig.PerCallLimit),
	}, nil
}

// Structural returns the schema of a definition's first version, and its structural form.
func Structural(crd *apiextensionsv1.CustomResourceDefinition) (*apiextensions.JSONSchemaProps, *structuralschema.Structural, error) {
	props := &apiextensions.JSONSchemaProps{}
	if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(crd.Spec.Versions[0].Schema.OpenAPIV3Schema, props, nil); err != nil {
		return nil, nil, err
	}
	structural, err := structuralschema.NewStructural(props)
	return props, structural, err
}

// Store returns an object as it is stored by an API server that is sent it as JSON, or the error
// with which one refuses it. The object takes the place of old.
func (k *Kind) Store(ctx context.Context, raw []byte, old map[string]any) (map[string]any, error) {
	var obj map[string]any
	if err := json.Unmarshal(raw, &obj); err != nil {
		return nil, err
	}
	if _, _, err := objectmeta.GetObjectMeta(obj, false); err != nil {
		return nil, err
	}
	defaulting.PruneNonNullableNullsWithoutDefaults(obj, k.structural)
	pruning.Prune(obj, k.structural, true)
	defaulting.Default(obj, k.structural)
	errs := validation.ValidateCustomResourceUpdate(nil, obj, old, k.schema)
	if errs = append(errs, listtype.ValidateListSetsAndMaps(nil, k.structural, obj)...); len(errs) == 0 {
		errs, _ = k.rules.Validate(ctx, nil, k.structural, obj, old, celconfig.RuntimeCELCostBudget)
	}
	return obj, errs.ToAggregate()
}
