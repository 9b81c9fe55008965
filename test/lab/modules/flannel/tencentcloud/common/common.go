// Package common is in place of the SDK's; see package vpc next to it.
package common

// StringPtr points at a value.
func StringPtr(v string) *string { return &v }

// BoolPtr points at a value.
func BoolPtr(v bool) *bool { return &v }

// StringPtrs points at each value.
func StringPtrs(values []string) []*string {
	var out []*string
	for i := range values {
		out = append(out, &values[i])
	}
	return out
}
