package evidence

import (
	"maps"
	"reflect"
	"slices"
	"strconv"

	"underwrite/attest"
)

// difference names the first field, in order of names, in which the evidence's
// request is not the reserved one. It is for people: both are hostile or known
// to be unequal.
func difference(got, want []byte) string {
	a, err := attest.ReadJSON(got)
	if err != nil {
		return err.Error()
	}
	b, err := attest.ReadJSON(want)
	if err != nil {
		return err.Error()
	}
	if field := firstDifference(a, b); field != "" {
		return field + " differs"
	}
	return "it is not in canonical form"
}

func firstDifference(a, b any) string {
	switch a := a.(type) {
	case map[string]any:
		b, ok := b.(map[string]any)
		if !ok {
			return "type"
		}
		names := maps.Clone(a)
		maps.Copy(names, b)
		for _, name := range slices.Sorted(maps.Keys(names)) {
			if field := childDifference(a[name], b[name], name); field != "" {
				return field
			}
		}
	case []any:
		b, ok := b.([]any)
		if !ok || len(a) != len(b) {
			return "length"
		}
		for i := range a {
			if field := childDifference(a[i], b[i], strconv.Itoa(i)); field != "" {
				return field
			}
		}
	default:
		if !reflect.DeepEqual(a, b) {
			return "value"
		}
	}
	return ""
}

func childDifference(a, b any, name string) string {
	switch field := firstDifference(a, b); {
	case field == "":
		return ""
	case isContainer(a) && isContainer(b) && field != "length" && field != "type":
		return name + "." + field
	default:
		return name
	}
}

func isContainer(v any) bool {
	switch v.(type) {
	case map[string]any, []any:
		return true
	}
	return false
}
