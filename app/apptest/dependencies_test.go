package apptest_test

import (
	"os/exec"
	"strings"
	"testing"
)

// TestDependenciesHaveReasons holds the README's table to the modules that
// go.mod requires directly.
func TestDependenciesHaveReasons(t *testing.T) {
	readme := string(readFile(t, "../../README.md"))
	_, table, found := strings.Cut(readme, "## Dependencies")
	if !found {
		t.Fatal("README.md has no section on dependencies")
	}
	table, _, _ = strings.Cut(table, "\n## ")
	out, err := exec.Command("go", "list", "-m", "-f", "{{if not .Indirect}}{{.Path}}{{end}}", "all").Output()
	if err != nil {
		t.Fatal(err)
	}
	modules := strings.Fields(string(out))[1:] // the first is this one
	if len(modules) < 10 {
		t.Fatalf("only %d direct dependencies found: %v", len(modules), modules)
	}
	for _, m := range modules {
		if !strings.Contains(table, m) {
			t.Errorf("README.md gives no reason for %s", m)
		}
	}
}
