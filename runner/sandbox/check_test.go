package sandbox

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestCheckHostFacts(t *testing.T) {
	good := hostFacts{arch: "amd64", userNS: true}
	tests := []struct {
		name   string
		change func(*hostFacts)
		want   string
	}{
		{"not root", func(f *hostFacts) { f.uid = 1000 }, "run underwrite as root (now uid 1000)"},
		{"other machine", func(f *hostFacts) { f.arch = "arm64" }, "x86-64"},
		{"dynamic binary", func(f *hostFacts) { f.dynamic = true }, "CGO_ENABLED=0"},
		{"private binary", func(f *hostFacts) { f.private = true }, "chmod o+x"},
		{"old kernel", func(f *hostFacts) { f.oldKernel = true }, "Linux 5.12"},
		{"no user namespaces", func(f *hostFacts) { f.userNS = false }, "user.max_user_namespaces"},
		{"no controller", func(f *hostFacts) { _, f.hierarchy = chooseHierarchies(nil, "", nil) }, "cgroup_enable=memory"},
		{"no /proc", func(f *hostFacts) { f.executable = os.ErrNotExist }, "mount /proc"},
	}
	if err := good.check(); err != nil {
		t.Errorf("a good host is refused: %v", err)
	}
	all := good
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			bad := good
			tt.change(&bad)
			tt.change(&all)
			err := bad.check()
			if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error = %v, want one line with %q", err, tt.want)
			}
		})
	}
	if err := all.check(); err == nil || strings.Count(err.Error(), "\n") != len(tests)-1 {
		t.Errorf("error = %v, want one line per problem", err)
	}
}

func TestCheckHost(t *testing.T) {
	facts := thisHost()
	if err := CheckHost(); (err != nil) != facts.dynamic { // the race detector needs a dynamic binary
		t.Errorf("CheckHost = %v, dynamic %v", err, facts.dynamic)
	}
	facts.dynamic = false
	if err := facts.check(); err != nil {
		t.Errorf("this host cannot run the sandbox's tests:\n%v", err)
	}
}

func TestDynamicExecutable(t *testing.T) {
	sh, err := filepath.EvalSymlinks("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	if dynamic, err := dynamicExecutable(sh); err != nil || !dynamic {
		t.Errorf("%s: dynamic %v, %v", sh, dynamic, err)
	}
	if dynamic, err := dynamicExecutable(program(t, Controller("/x", "1"))); err != nil || dynamic {
		t.Errorf("static program: dynamic %v, %v", dynamic, err)
	}
	if _, err := dynamicExecutable("/nonexistent"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing file: %v", err)
	}
	if _, err := exec.LookPath("python3"); err != nil {
		t.Errorf("the sandbox's tests need python3: %v", err)
	}
}
