package policy

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"underwrite/attest"
)

// Refusal says why the gateway's own configuration does not accept a request.
type Refusal struct {
	Field  string // of the request
	Reason string // one line that a person can act on
}

func (r *Refusal) Error() string { return r.Field + ": " + r.Reason }

func refuse(field, format string, args ...any) error {
	return &Refusal{field, fmt.Sprintf(format, args...)}
}

// Accepted is what the gateway runs for a request.
type Accepted struct {
	Profile Profile        // of the configuration
	Trusted attest.Profile // derived from it; the request's may add proof arguments
}

// Accept decides whether a well-formed request is one that this gateway signs.
// It returns a *Refusal if not; another error means that the configuration or
// this host is at fault.
func (c *Config) Accept(r attest.Request, keyID string, h Host) (Accepted, error) {
	p, ok := c.Profiles[r.ProfileName]
	if !ok {
		return Accepted{}, refuse("profileName", "%q is not one of the gateway's profiles", r.ProfileName)
	}
	if !c.acceptsRepository(r.Target.Repo) {
		return Accepted{}, refuse("target.repo", "%q is not one of the gateway's repositories", r.Target.Repo)
	}
	if r.Target.ObjectBundleBytes > c.SourceBundleBytes {
		return Accepted{}, refuse("target.object_bundle_bytes", "%d is above the gateway's sourceBundleBytes %d", r.Target.ObjectBundleBytes, c.SourceBundleBytes)
	}
	own, err := c.Derive(r.ProfileName, keyID, h)
	if err != nil {
		return Accepted{}, err
	}
	if err := sameTrust(r.Profile, own); err != nil {
		return Accepted{}, err
	}
	return Accepted{p, own}, c.acceptsJob(r.Profile, own)
}

// acceptsRepository compares as GitHub does: without case.
func (c *Config) acceptsRepository(repo string) bool {
	owner, _, _ := strings.Cut(repo, "/")
	return slices.ContainsFunc(c.Repositories, func(pattern string) bool {
		if o, ok := strings.CutSuffix(pattern, "/*"); ok {
			return asciiFold(o) == asciiFold(owner)
		}
		return asciiFold(pattern) == asciiFold(repo)
	})
}

// asciiFold leaves other letters alone: no Unicode letter may fold into an ASCII one.
func asciiFold(s string) string {
	return strings.Map(func(r rune) rune {
		if 'A' <= r && r <= 'Z' {
			return r + 'a' - 'A'
		}
		return r
	}, s)
}

func sameTrust(got, own attest.Profile) error {
	const refresh = "; give the controller the output of `underwrite gateway profile`"
	switch {
	case got.SignerID != own.SignerID:
		return refuse("profile.signerId", "%q is not this gateway's %q%s", got.SignerID, own.SignerID, refresh)
	case got.KeyID != own.KeyID:
		return refuse("profile.keyId", "%q is not this gateway's %q%s", got.KeyID, own.KeyID, refresh)
	case got.ExecutorID != own.ExecutorID:
		return refuse("profile.executorId", "%q is not this gateway's %q%s", got.ExecutorID, own.ExecutorID, refresh)
	case got.Version != own.Version:
		return refuse("profile.version", "%d is not %d", got.Version, own.Version)
	case got.Sandbox != own.Sandbox:
		return refuse("profile.sandbox", "differs from the gateway's profile%s", refresh)
	}
	return nil
}

// acceptsJob requires the profile's job, with at most 16 bounded arguments
// appended and any exit code predicted if the configuration allows proofs.
func (c *Config) acceptsJob(got, own attest.Profile) error {
	g, o := got.Job, own.Job
	if g.Cwd != o.Cwd || g.Executable != o.Executable || g.Stdin != o.Stdin || !maps.Equal(g.Environment, o.Environment) {
		return refuse("profile.job", "differs from the gateway's profile in more than appended arguments")
	}
	if len(g.Argv) < len(o.Argv) || !slices.Equal(g.Argv[:len(o.Argv)], o.Argv) {
		return refuse("profile.job.argv", "does not begin with the gateway's own arguments")
	}
	extra := g.Argv[len(o.Argv):]
	if !c.ProofArguments && (len(extra) > 0 || got.ExitCode != own.ExitCode) {
		return refuse("profile.job.argv", "proof arguments and predictions are off here: the gateway's proofArguments enables them")
	}
	if got.ExitCode < 0 || got.ExitCode > 255 {
		return refuse("profile.exitCode", "%d is not an exit code", got.ExitCode)
	}
	return acceptsArguments(extra)
}

func acceptsArguments(extra []string) error {
	if len(extra) > MaxProofArguments {
		return refuse("profile.job.argv", "%d proof arguments: at most %d are allowed", len(extra), MaxProofArguments)
	}
	for i, a := range extra {
		if len(a) > MaxArgumentBytes || strings.ContainsRune(a, 0) || !utf8.ValidString(a) {
			return refuse("profile.job.argv", "proof argument %d is longer than %d bytes or not plain UTF-8", i+1, MaxArgumentBytes)
		}
	}
	return nil
}
