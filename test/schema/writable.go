package schema

import (
	"encoding/json"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/test/kit"
)

// Writable are the resources that the agents may write, by the rules of their roles.
func Writable() (resources []string) {
	objs, _ := manifests.NodeAgent(manifests.Agents{}, []int32{1})
	gateway, _ := manifests.Gateway{Peering: "b", Services: true}.Objects()
	controller, _ := manifests.Services(manifests.Agents{})
	for _, obj := range slices.Concat(objs, gateway, controller) {
		var rules []rbacv1.PolicyRule
		switch r := obj.(type) {
		case *rbacv1.ClusterRole:
			if _, forUsers := r.Labels["rbac.authorization.k8s.io/aggregate-to-admin"]; !forUsers {
				rules = r.Rules
			}
		case *rbacv1.Role:
			rules = r.Rules
		}
		for _, r := range rules {
			if slices.ContainsFunc(r.Verbs, func(verb string) bool { return !slices.Contains([]string{"get", "list", "watch", "delete"}, verb) }) {
				resources = append(resources, r.Resources...)
			}
		}
	}
	slices.Sort(resources)
	return slices.Compact(resources)
}

// BuiltIn calls try with objects of a kind of Kubernetes' own: for each of its fields, each odd value that an API
// server can read there. There are a few for each field, or all of them in make attack.
func BuiltIn[T any](t testing.TB, few int, try func(field string, obj T)) {
	t.Helper()
	seed := *Seed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("-seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	full := new(T)
	fill(reflect.ValueOf(full).Elem(), 0)
	var tree map[string]any
	kit.NoError(t, utiljson.Unmarshal(encoded(full), &tree))
	stored := 0
	for _, f := range leaves(tree, nil) {
		odd := append(f.Odd(), "9999-12-31T23:59:59.999999-23:59", Random(r))
		r.Shuffle(len(odd), func(i, j int) { odd[i], odd[j] = odd[j], odd[i] })
		tried := 0
		for _, value := range odd {
			obj, ok := With(tree, f.Path, value)
			var read T
			if !ok || json.Unmarshal(encoded(obj), &read) != nil || tried >= few && !kit.Full() {
				continue
			}
			tried++
			stored++
			try(strings.Trim(string(encoded(f.Path)), "[]"), read)
		}
	}
	kit.ErrorIf(t, stored < 100, "only %d were tried, which proves little", stored)
}

// fill sets all fields of a value.
func fill(v reflect.Value, depth int) {
	const deepest = 8
	if depth > deepest || !v.CanSet() {
		return
	}
	if v.Type() == reflect.TypeFor[time.Time]() {
		v.Set(reflect.ValueOf(time.Unix(1.7e9, 0)))
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), depth+1)
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i), depth+1)
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		if v.Type().Elem().Kind() == reflect.Uint8 {
			v.SetBytes([]byte("{}"))
			return
		}
		fill(v.Index(0), depth+1)
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key, depth+1)
		fill(value, depth+1)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case reflect.String:
		v.SetString("x")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(1)
	}
}

// leaves are all fields of a tree.
func leaves(v any, at Path) (out []Field) {
	if len(at) > 0 {
		_, isText := v.(string)
		out = append(out, Field{at, isText})
	}
	switch v := v.(type) {
	case map[string]any:
		for name, child := range v {
			out = append(out, leaves(child, append(slices.Clone(at), name))...)
		}
	case []any:
		if len(v) > 0 {
			out = append(out, leaves(v[0], append(slices.Clone(at), 0))...)
		}
	}
	return out
}
