package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"k8s.io/client-go/util/jsonpath"
)

// customColumns is -o custom-columns=NAME:PATH,…, as with kubectl.
const customColumns = "custom-columns="

// column is one of -o custom-columns.
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

// printColumns prints a row for each item of a list.
func (o *output) printColumns(w io.Writer, list any) error {
	cols, err := parseColumns(strings.TrimPrefix(o.format, customColumns))
	if err != nil {
		return err
	}
	raw, err := json.Marshal(list)
	if err != nil {
		return err
	}
	var items []any
	if err := json.Unmarshal(raw, &items); err != nil {
		return err
	}
	var head []string
	for _, c := range cols {
		head = append(head, c.name)
	}
	var rows [][]any
	for _, item := range items {
		var row []any
		for _, c := range cols {
			found, err := c.path.FindResults(item)
			if err != nil {
				return fmt.Errorf("column %s: %w", c.name, err)
			}
			var values []string
			for _, set := range found {
				for _, v := range set {
					values = append(values, fmt.Sprint(v.Interface()))
				}
			}
			if len(values) == 0 {
				values = []string{"<none>"}
			}
			row = append(row, strings.Join(values, ","))
		}
		rows = append(rows, row)
	}
	o.printTable(w, head, rows)
	return nil
}
