package output

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/samber/lo"
	"k8s.io/client-go/util/jsonpath"
)

// customColumns is the prefix of -o custom-columns=NAME:PATH,…, as in kubectl.
const customColumns = "custom-columns="

// column is a column of -o custom-columns.
type column struct {
	name string
	path *jsonpath.JSONPath
}

func parseColumns(spec string) (out []column, err error) {
	for part := range strings.SplitSeq(spec, ",") {
		name, path, isPair := strings.Cut(part, ":")
		if !isPair || name == "" || path == "" {
			return nil, errors.New("columns are NAME:PATH,NAME:PATH, as in CLUSTER:.cluster,STATE:.state")
		}
		path = strings.TrimPrefix(strings.TrimSuffix(strings.TrimPrefix(path, "{"), "}"), ".")
		c := column{name, jsonpath.New(name).AllowMissingKeys(true)}
		if err := c.path.Parse("{." + path + "}"); err != nil {
			return nil, fmt.Errorf("column %s: %w", name, err)
		}
		out = append(out, c)
	}
	return out, nil
}

// of returns the column's cell for an item.
func (c column) of(item any) (any, error) {
	found, err := c.path.FindResults(item)
	if err != nil {
		return nil, fmt.Errorf("column %s: %w", c.name, err)
	}
	values := lo.Map(slices.Concat(found...), func(v reflect.Value, _ int) string { return fmt.Sprint(v.Interface()) })
	if len(values) == 0 {
		return "<none>", nil
	}
	return strings.Join(values, ","), nil
}
