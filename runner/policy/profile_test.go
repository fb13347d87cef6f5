package policy

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

// validProfile is a profile file to which tests make one change each.
const validProfile = `argv: [/usr/bin/env, "-i"]
environment:
  LANG: C.UTF-8
root: host
proofArguments: true
limits:
  wallSeconds: 30
  cpuSeconds: 30
  memoryBytes: 536870912
  processes: 64
  workspaceBytes: 134217728
  outputBytes: 65536
`

var testCeilings = Limits{WallSeconds: 60, CPUSeconds: 60, MemoryBytes: 1 << 30, Processes: 64, WorkspaceBytes: 1 << 28, OutputBytes: 1 << 20}

func TestParseProfile(t *testing.T) {
	f, err := ParseProfile("p.yml", []byte(validProfile), testCeilings)
	if err != nil {
		t.Fatal(err)
	}
	if !f.ProofArguments || f.Cwd != "." || f.CPUs != 2 || f.Executable != "/usr/bin/env" || f.Limits.WallSeconds != 30 || f.Environment["LANG"] != "C.UTF-8" {
		t.Errorf("profile = %+v", f)
	}
	job, err := f.Job()
	if err != nil || job.Argv[1] != "-i" || job.Executable.Path != "/usr/bin/env" || len(job.Executable.SHA256) != 64 {
		t.Errorf("job = %+v, %v", job, err)
	}
}

func TestParseProfileResolvesLinks(t *testing.T) {
	want, err := filepath.EvalSymlinks("/bin/true")
	if err != nil {
		t.Fatal(err)
	}
	f, err := ParseProfile("p.yml", []byte(strings.Replace(validProfile, "/usr/bin/env", "/bin/true", 1)), testCeilings)
	if err != nil || f.Executable != want || f.Argv[0] != want {
		t.Errorf("ParseProfile = %+v, %v, want executable %s", f, err, want)
	}
}

func TestParseProfileRefuses(t *testing.T) {
	for _, c := range []struct {
		name, old, new string
		line           int
		want           string // field and fix
	}{
		{"unknown field", "root: host", "rooot: host", 4, "rooot: unknown field: remove it"},
		{"field of the gateway", "root: host", "root: host\nkey: /k", 5, "key: unknown field"},
		{"unknown limit", "  processes: 64", "  tasks: 64", 10, "tasks: unknown field"},
		{"duplicate key", "root: host", "root: host\nroot: host", 5, "root: is already given on line 4: keep one"},
		{"wrong type", "processes: 64", "processes: few", 10, `limits.processes: "few" is of the wrong type: want a whole number`},
		{"fraction", "processes: 64", "processes: 6.4", 10, `limits.processes: 6.4 is of the wrong type: want digits only`},
		{"text for a list", `argv: [/usr/bin/env, "-i"]`, "argv: /usr/bin/env", 1, `argv: "/usr/bi..." is of the wrong type: want a list`},
		{"text for true", "proofArguments: true", "proofArguments: sure", 5, `proofArguments: "sure" is of the wrong type: want true or false`},
		{"two documents", "proofArguments: true", "---\nroot: host", 5, "more than one document: keep one"},
		{"not YAML", "root: host", "root: [host", 4, "this is not YAML"},
		{"text", validProfile, "just words", 1, "want fields with values"},
		{"empty", validProfile, "", 1, "the file is empty"},
		{"too large", validProfile, strings.Repeat("#", MaxFileBytes+1), 1, "too large"},
		{"no argv", `argv: [/usr/bin/env, "-i"]` + "\n", "", 1, "argv: is empty"},
		{"relative program", "/usr/bin/env", "env", 1, "argv: \"env\": want the absolute path"},
		{"missing program", "/usr/bin/env", "/usr/bin/no-such-program", 1, "argv: "},
		{"missing executable", "root: host", "root: host\nexecutable: /usr/bin/no-such-program", 5, "executable: "},
		{"program elsewhere", "/usr/bin/env", "/etc/passwd", 1, "not below /usr"},
		{"image", "root: host", "root: image", 4, "root: \"image\": want host"},
		{"cwd outside", "root: host", "root: host\ncwd: /tmp", 5, "cwd: \"/tmp\": want a directory below"},
		{"credential", "  LANG: C.UTF-8", "  GITHUB_TOKEN: x", 3, "environment.GITHUB_TOKEN: GITHUB_TOKEN looks like a credential"},
		{"limit above the ceiling", "wallSeconds: 30", "wallSeconds: 61", 7, "limits.wallSeconds: 61 is above the gateway's ceiling of 60"},
		{"no limit", "  outputBytes: 65536\n", "", 6, "limits.outputBytes: 0: want a positive number"},
		{"little memory", "memoryBytes: 536870912", "memoryBytes: 134217728", 9, "limits.memoryBytes: 134217728 is too little"},
		{"long argument", `"-i"`, strings.Repeat("a", 1<<18), 1, "argv[1]: is longer than"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if !strings.Contains(validProfile, c.old) {
				t.Fatalf("the valid profile has no %q", c.old)
			}
			_, err := ParseProfile("p.yml", []byte(strings.Replace(validProfile, c.old, c.new, 1)), testCeilings)
			if !errors.Is(err, ErrProfile) {
				t.Fatalf("ParseProfile = %v, want ErrProfile", err)
			}
			if where := fmt.Sprintf("profile p.yml:%d: ", c.line); !strings.HasPrefix(err.Error(), where) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %q does not name %q and %q", err, where, c.want)
			}
		})
	}
}

// FuzzParseProfile: a profile is accepted within its bounds or refused by an
// error that names the file.
func FuzzParseProfile(f *testing.F) {
	f.Add([]byte(validProfile))
	f.Add([]byte("a: &a [*a]"))
	f.Add([]byte("<<: {argv: [1]}\nlimits: [x]"))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := ParseProfile("p.yml", b, testCeilings)
		if err != nil {
			if !errors.Is(err, ErrProfile) || !strings.Contains(err.Error(), "p.yml") {
				t.Errorf("error %q does not name the file", err)
			}
			return
		}
		if p.Limits.WallSeconds > testCeilings.WallSeconds || p.Limits.MemoryBytes > testCeilings.MemoryBytes || !filepath.IsAbs(p.Executable) {
			t.Errorf("accepted %+v", p)
		}
	})
}
