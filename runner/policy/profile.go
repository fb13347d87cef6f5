package policy

import (
	"errors"
	"maps"
	"path/filepath"
	"strings"

	"underwrite/attest"
	"underwrite/runner/image"
	"underwrite/runner/internal/hostpath"
)

// ErrProfile is wrapped by every error about a profile file's content.
var ErrProfile = errors.New("profile")

// A ProfileFile is one profile in a file of its own, as the local commands take it.
type ProfileFile struct {
	Profile `yaml:",inline"`
	// ProofArguments lets whoever asks for a run append at most
	// MaxProofArguments arguments to argv.
	ProofArguments bool `yaml:"proofArguments"`
}

// ParseProfile reads and checks a profile file's text as the gateway checks its
// own profiles, down to the executable on this host. An error names the file
// (path, which is not opened), the line, the field and the fix.
func ParseProfile(path string, text []byte, ceilings Limits) (*ProfileFile, error) {
	f, d := &ProfileFile{}, document{ErrProfile, path, text}
	if len(text) > MaxFileBytes {
		return nil, d.at(1, "the file is too large: is it a profile?")
	}
	if err := d.decode(f); err != nil {
		return nil, err
	}
	f.Profile = f.withDefaults()
	if err := f.check("", ceilings); err != nil {
		return nil, d.locate(err)
	}
	var err error
	if f.Profile, err = f.resolved(""); err != nil {
		return nil, d.locate(err)
	}
	return f, d.locate(f.checkJob())
}

// checkJob asks for what only the protocol demands, such as the size of argv.
func (p Profile) checkJob() error {
	_, err := p.Job()
	var field *attest.FieldError
	if errors.As(err, &field) {
		return bad(strings.TrimPrefix(field.Field, "job."), "%s", field.Reason)
	}
	return err
}

func (p Profile) withDefaults() Profile {
	if p.Cwd == "" {
		p.Cwd = "."
	}
	if p.CPUs == 0 {
		p.CPUs = 2
	}
	if p.Executable == "" && len(p.Argv) > 0 {
		p.Executable = p.Argv[0]
	}
	return p
}

// resolved names the executable's real file, which it requires to be one that
// the job can execute. at goes before the field's name.
func (p Profile) resolved(at string) (Profile, error) {
	field := p.executableField(at)
	real, err := filepath.EvalSymlinks(p.Executable)
	if err != nil {
		return p, bad(field, "%v: install the program or correct the path", err)
	}
	if p.RootDigest() == image.HostDigest && !within(real, "/usr") {
		return p, bad(field, "%s is not below /usr, and with root: host a job sees nothing else", real)
	}
	f, err := hostpath.Open(real)
	if err != nil {
		return p, bad(field, "%v", err)
	}
	info, err := f.Stat()
	f.Close()
	if err != nil || info.Mode()&0o111 == 0 || info.Size() == 0 {
		return p, bad(field, "%s is not executable: chmod a+x it or name another program", real)
	}
	p.Executable = real
	p.Argv = append([]string{real}, p.Argv[1:]...)
	return p, nil
}

// Job is the profile's job with the executable as it is on this host now.
// An invalid job is an attest.ErrSchema.
func (p Profile) Job() (attest.Job, error) {
	executable, err := pin(p.Executable)
	if err != nil {
		return attest.Job{}, bad("executable", "%v", err)
	}
	env := maps.Clone(p.Environment)
	if env == nil {
		env = map[string]string{}
	}
	job := attest.Job{Argv: p.Argv, Cwd: p.Cwd, Environment: env, Executable: executable, Stdin: "closed"}
	return job, job.Validate()
}
