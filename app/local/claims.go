package local

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"underwrite/app/evidence"
	"underwrite/attest"
	"underwrite/runner/policy"
)

// Claims are single parts of an expectation. An empty part is not compared.
type Claims struct {
	// Profile is a profile file, or a trusted profile as `underwrite gateway
	// profile` prints it. ExitCode and Args belong to it.
	Profile  string
	ExitCode int64    // predicted
	Args     []string // appended to the profile's argv
	Signer   string
	Executor string
	Repo     string // owner/name
	Number   int64  // of the pull request
	Head     string // commit
}

var commit = regexp.MustCompile(`^[0-9a-fA-F]{40}$`)

func (c Claims) empty() bool {
	return c.Profile == "" && c.ExitCode == 0 && len(c.Args) == 0 && c.Signer == "" && c.Executor == "" &&
		c.Repo == "" && c.Number == 0 && c.Head == ""
}

// compare compares the given parts with the request. The error wraps
// evidence.ErrInvalid if one differs; another error says that it could not be
// compared.
func (c Claims) compare(r attest.Request) ([]evidence.Step, error) {
	var steps []evidence.Step
	if c.Profile == "" && (c.ExitCode != 0 || len(c.Args) > 0) {
		return nil, fmt.Errorf("--exit-code and arguments after -- complete a profile: give --profile too")
	}
	if c.Head != "" && !commit.MatchString(c.Head) {
		return nil, fmt.Errorf("--head %q: want all 40 digits of the commit", c.Head)
	}
	if c.Profile != "" {
		own, err := c.profile()
		if err != nil {
			return nil, err
		}
		steps = append(steps, compareProfile(own, r.Profile)...)
	}
	for _, p := range []struct{ name, want, got string }{
		{"signer", c.Signer, r.Profile.SignerID},
		{"executor", c.Executor, r.Profile.ExecutorID},
		{"repository", strings.ToLower(c.Repo), strings.ToLower(r.Target.Repo)},
		{"pull request", number(c.Number), number(r.Target.Number)},
		{"head", strings.ToLower(c.Head), r.Target.HeadSHA},
	} {
		if p.want != "" {
			steps = append(steps, same(p.name, p.want, p.got))
		}
	}
	for _, s := range steps {
		if !s.OK {
			return steps, fmt.Errorf("%w: %s: %s", evidence.ErrInvalid, s.Name, s.Detail)
		}
	}
	return steps, nil
}

func number(n int64) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatInt(n, 10)
}

func same(name, want, got string) evidence.Step {
	if want == got {
		return evidence.Step{Name: name, OK: true, Detail: strconv.Quote(got)}
	}
	return evidence.Step{Name: name, Detail: fmt.Sprintf("is %q, expected %q", got, want)}
}

// profile reads the profile file. Only a trusted profile names a signer and an
// executor; for a profile file they stay empty.
func (c Claims) profile() (attest.Profile, error) {
	name, text, err := readInput(c.Profile, nil, policy.MaxFileBytes)
	if err != nil {
		return attest.Profile{}, fmt.Errorf("--profile: %w", err)
	}
	p, err := attest.ParseProfile(text)
	if err != nil {
		if p, err = fromFile(name, text); err != nil {
			return attest.Profile{}, fmt.Errorf("--profile: %w", err)
		}
	}
	p.Job.Argv = append(slices.Clone(p.Job.Argv), c.Args...)
	p.ExitCode = c.ExitCode
	return p, nil
}

func fromFile(name string, text []byte) (attest.Profile, error) {
	top := policy.Limits{
		WallSeconds: attest.MaxInteger, CPUSeconds: attest.MaxInteger, MemoryBytes: attest.MaxInteger,
		Processes: policy.MaxProcesses, WorkspaceBytes: attest.MaxInteger, OutputBytes: attest.MaxInteger,
	}
	f, err := policy.ParseProfile(name, text, top)
	if err != nil {
		return attest.Profile{}, err
	}
	job, err := f.Job()
	return attest.Profile{Job: job, Sandbox: attest.NewSandbox(f.Limits.Attest())}, err
}

func compareProfile(want, got attest.Profile) []evidence.Step {
	steps := []evidence.Step{
		same("argv", strings.Join(want.Job.Argv, " "), strings.Join(got.Job.Argv, " ")),
		same("working directory", want.Job.Cwd, got.Job.Cwd),
		same("executable", pinned(want.Job.Executable), pinned(got.Job.Executable)),
		same("predicted exit code", strconv.FormatInt(want.ExitCode, 10), strconv.FormatInt(got.ExitCode, 10)),
	}
	if !slices.Equal(want.Job.Argv, got.Job.Argv) && steps[0].OK { // the same words, cut otherwise
		steps[0] = evidence.Step{Name: "argv", Detail: fmt.Sprintf("is %q, expected %q", got.Job.Argv, want.Job.Argv)}
	}
	steps = append(steps,
		equal("environment", maps.Equal(want.Job.Environment, got.Job.Environment)),
		equal("sandbox and limits", want.Sandbox == got.Sandbox))
	for _, p := range []struct{ name, want, got string }{
		{"profile's signer", want.SignerID, got.SignerID},
		{"profile's executor", want.ExecutorID, got.ExecutorID},
		{"profile's key", want.KeyID, got.KeyID},
	} {
		if p.want != "" {
			steps = append(steps, same(p.name, p.want, p.got))
		}
	}
	return steps
}

func pinned(e attest.Executable) string {
	return fmt.Sprintf("%s SHA-256 %s", e.Path, e.SHA256)
}

func equal(name string, ok bool) evidence.Step {
	if ok {
		return evidence.Step{Name: name, OK: true, Detail: "the profile's"}
	}
	return evidence.Step{Name: name, Detail: "is not the profile's"}
}

// open lists the parts that are missing.
func (c Claims) open() []Open {
	var open []Open
	for _, p := range []struct {
		name, flag string
		missing    bool
	}{
		{"job, sandbox and prediction", "--profile", c.Profile == ""},
		{"signer", "--signer", c.Signer == ""},
		{"executor", "--executor", c.Executor == ""},
		{"repository", "--repo", c.Repo == ""},
		{"pull request", "--pr", c.Number == 0},
		{"head", "--head", c.Head == ""},
	} {
		if p.missing {
			open = append(open, Open{p.name, "it is only what the evidence says; give " + p.flag + ", or --expect with everything"})
		}
	}
	return open
}
