package apptest

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// listed is the part of `go list -json` that the import rules look at.
type listed struct {
	ImportPath string
	Standard   bool
	Imports    []string
	Deps       []string
}

// A ban forbids packages under from to import to. Transitive bans look at every
// dependency, direct ones only at the import declarations of the package.
type ban struct {
	from   []string
	to     []string
	except []string // importers that are allowed to
	allow  []string // targets below to that are allowed
	direct bool
	reason string
}

var bans = []ban{
	{
		from: []string{"handlers", "app/controller", "app/web", "app/linked", "app/config", "app/evidence", "app/serve"},
		to:   []string{"runner", "runner/policy", "runner/sandbox", "runner/image", "runner/posture", "runner/grade", "runner/gateway", "runner/internal/signkey"},
		// exact packages: the leaf packages below runner that the controller shares are not listed
		reason: "the controller must not be able to run guests or to touch the signing key",
	},
	{
		from:   []string{"runner"},
		to:     []string{"handlers", "app", "store", "migrations/controller", "github.com/google/go-github"},
		allow:  []string{"store/ledger", "store/blob"},
		reason: "the gateway holds no GitHub credential and no controller state",
	},
	{
		from:   []string{"runner/internal/signkey"},
		to:     []string{"net", "net/http"},
		reason: "code that holds the signing key has no network",
		direct: true,
	},
	{
		from:   []string{"runner/gateway", "runner/policy"},
		to:     []string{"runner", "runner/internal/signkey", "runner/sandbox/gvisor"},
		reason: "what listens on the socket can neither sign nor run a guest",
	},
	{
		from:   []string{""},
		to:     []string{"underwrite/runner/internal/signkey"},
		except: []string{"runner", "app"},
		direct: true,
		reason: "the signing key is used by the broker alone",
	},
	{
		from:   []string{""},
		to:     []string{"underwrite/handlers/internal/ghapp"},
		except: []string{"handlers"},
		direct: true,
		reason: "GitHub credentials are held in one place",
	},
	{
		from:   []string{""},
		to:     []string{"github.com/google/go-github"},
		except: []string{"handlers"},
		direct: true,
		reason: "only handlers speak to GitHub",
	},
	{
		from:   []string{""},
		to:     []string{"database/sql"},
		except: []string{"store", "migrations"},
		direct: true,
		reason: "SQL lives in the store, so that states move in one place",
	},
	{
		from:   []string{""},
		to:     []string{"gvisor.dev/gvisor"},
		except: []string{"runner/sandbox/gvisor"},
		direct: true,
		reason: "gVisor is 60 MB of code: one leaf links it, and tests drive the built binary",
	},
	{
		from:   []string{"attest", "handlers", "store", "runner/quarantine", "runner/confine", "runner/policy", "runner/wire"},
		to:     []string{"gvisor.dev/gvisor"},
		reason: "a test binary that links gVisor grows by 60 MB and loses the race detector",
	},
	{
		from:   []string{""},
		to:     []string{"os/exec"},
		except: []string{"runner/confine", "runner/sandbox/gvisor", "runner/gateway", "app"}, // the gateway starts one execution per request
		direct: true,
		reason: "processes are started in few, reviewed places",
	},
	{
		from:   []string{"app/controller", "app/web", "app/linked", "app/config", "app/evidence", "app/serve"},
		to:     []string{"os/exec"},
		direct: true,
		reason: "of app, only the wiring and the simulated GitHub start processes",
	},
}

// standardOnly lists packages that import the standard library and nothing else.
var standardOnly = []string{"attest", "attest/grade"}

func TestImports(t *testing.T) {
	for _, pkg := range list(t) {
		rel, ok := strings.CutPrefix(pkg.ImportPath, module+"/")
		if !ok {
			continue
		}
		for _, b := range bans {
			checkBan(t, rel, pkg, b)
		}
		if slices.Contains(standardOnly, rel) {
			checkStandardOnly(t, pkg)
		}
	}
}

// TestBansCanFail shows that a ban finds what it forbids.
func TestBansCanFail(t *testing.T) {
	pkg := listed{ImportPath: "underwrite/handlers/x", Imports: []string{"os/exec"}, Deps: []string{"underwrite/runner", "underwrite/runner/wire"}}
	var hits int
	for _, b := range bans {
		hits += len(violations("handlers/x", pkg, b))
	}
	if hits != 2 {
		t.Fatalf("violations found = %d, want 2 (runner and os/exec)", hits)
	}
}

func checkBan(t *testing.T, rel string, pkg listed, b ban) {
	t.Helper()
	for _, dep := range violations(rel, pkg, b) {
		t.Errorf("%s imports %s: %s", rel, dep, b.reason)
	}
}

func violations(rel string, pkg listed, b ban) []string {
	if !slices.ContainsFunc(b.from, func(f string) bool { return under(rel, f) }) ||
		slices.ContainsFunc(b.except, func(f string) bool { return under(rel, f) }) {
		return nil
	}
	deps := pkg.Deps
	if b.direct {
		deps = pkg.Imports
	}
	var found []string
	for _, dep := range deps {
		own, isOwn := strings.CutPrefix(dep, module+"/")
		if isOwn && slices.ContainsFunc(b.allow, func(a string) bool { return under(own, a) }) {
			continue
		}
		for _, to := range b.to {
			if matches(dep, own, isOwn, to, rel) {
				found = append(found, dep)
			}
		}
	}
	return found
}

func matches(dep, own string, isOwn bool, to, rel string) bool {
	switch {
	case isOwn && to == "runner": // the broker itself, not the packages below it
		return own == "runner"
	case isOwn && !strings.Contains(to, "."):
		return under(own, strings.TrimPrefix(to, module+"/"))
	case to == "net" || to == "net/http" || to == "os/exec" || to == "database/sql":
		return dep == to
	default:
		return strings.HasPrefix(dep, to)
	}
}

func under(path, dir string) bool {
	return dir == "" || path == dir || strings.HasPrefix(path, dir+"/")
}

func checkStandardOnly(t *testing.T, pkg listed) {
	t.Helper()
	for _, dep := range pkg.Deps {
		first, _, _ := strings.Cut(dep, "/")
		if strings.Contains(first, ".") || first == module {
			t.Errorf("%s imports %s: the public format packages import the standard library only", pkg.ImportPath, dep)
		}
	}
}

func list(t *testing.T) []listed {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Standard,Imports,Deps", module+"/...")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, &stderr)
	}
	var pkgs []listed
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("go list output: %v", err)
		}
		pkgs = append(pkgs, p)
	}
	if len(pkgs) < 20 {
		t.Fatalf("go list named %d packages: the rules checked nothing", len(pkgs))
	}
	return pkgs
}
