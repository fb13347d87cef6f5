package policy

import (
	"os"
	"reflect"
	"strings"
	"testing"
)

// TestExampleLoads: the shipped example is valid and shows every field.
func TestExampleLoads(t *testing.T) {
	const path = "../../deploy/gateway.example.yml"
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parse(path, b); err != nil {
		t.Fatal(err)
	}
	for _, typ := range []reflect.Type{reflect.TypeFor[Config](), reflect.TypeFor[Profile](), reflect.TypeFor[Limits]()} {
		for _, f := range reflect.VisibleFields(typ) {
			if tag := f.Tag.Get("yaml"); tag != "" && !strings.Contains(string(b), "\n"+tag+":") && !strings.Contains(string(b), " "+tag+":") {
				t.Errorf("the example does not show %s", tag)
			}
		}
	}
}
