package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"go.yaml.in/yaml/v3"
	"golang.org/x/sys/unix"

	"underwrite/app/evidence"
	"underwrite/runner"
	"underwrite/runner/policy"
	"underwrite/runner/sandbox"
	"underwrite/store/blob"
)

// How the gateway of one run calls itself and what it runs.
const (
	deployment   = "local"
	profileName  = "local"
	signerID     = "urn:underwrite:signer:local"
	policyCgroup = sandbox.DefaultCgroupParent

	capabilityLifetime = 120 // seconds
	workspacePattern   = "underwrite-prove-*"
	lockName           = "lock"
)

// workspace is the private directory of one run. A lock file in it, held while
// the run lives, tells it from what a killed run left behind.
type workspace struct {
	dir   string
	lock  *os.File
	blobs *blob.Store
}

// newWorkspace makes one, after removing what killed runs left behind.
func newWorkspace(cgroupParent string) (*workspace, error) {
	parent, err := filepath.EvalSymlinks(os.TempDir())
	if err != nil {
		return nil, fmt.Errorf("temporary directory: %w", err)
	}
	if err := sweepWorkspaces(parent, cgroupParent); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(parent, workspacePattern)
	if err != nil {
		return nil, fmt.Errorf("temporary directory: %w", err)
	}
	w := &workspace{dir: dir}
	if err := w.fill(); err != nil {
		return nil, errors.Join(fmt.Errorf("temporary directory: %w", err), w.remove())
	}
	return w, nil
}

func (w *workspace) fill() (err error) {
	if w.lock, err = lockFile(w.path(lockName), os.O_CREATE); err != nil {
		return err
	}
	for _, name := range []string{"frozen", "scratch"} {
		if err := os.Mkdir(w.path(name), 0o700); err != nil {
			return err
		}
	}
	w.blobs, err = blob.Create(w.path("blobs"))
	return err
}

func (w *workspace) path(name string) string { return filepath.Join(w.dir, name) }

// remove removes the directory and all that is in it: also the signing key.
func (w *workspace) remove() error {
	err := os.RemoveAll(w.dir)
	if w.lock != nil {
		err = errors.Join(err, w.lock.Close())
	}
	if err != nil {
		return fmt.Errorf("remove %s: %w", w.dir, err)
	}
	return nil
}

// lockFile opens and locks a file. unix.EWOULDBLOCK says that another process
// holds the lock.
func lockFile(path string, flag int) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW|flag, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// sweepWorkspaces removes the directories of this user's runs that were killed.
// Their mounts and cgroups go first.
func sweepWorkspaces(parent, cgroupParent string) error {
	left, err := filepath.Glob(filepath.Join(parent, workspacePattern))
	if err != nil || len(left) == 0 {
		return err
	}
	if _, err := sandbox.Sweep(cgroupParent); err != nil {
		return err
	}
	for _, dir := range left {
		var st unix.Stat_t
		if unix.Lstat(dir, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR || int(st.Uid) != os.Geteuid() {
			continue
		}
		w := &workspace{dir: dir}
		if w.lock, err = lockFile(w.path(lockName), 0); err != nil {
			continue // a living run's, or one that is just being made
		}
		if err := w.remove(); err != nil {
			return err
		}
	}
	return nil
}

// install makes the run's own gateway: configuration, ledger, key.
func (p *proving) install(ctx context.Context) error {
	c := policy.Config{
		Version: 1, Deployment: deployment, Signer: signerID,
		Key: p.work.path("key.pem"), State: p.work.path("state"), Outbox: p.work.path("outbox"),
		// The profile's own word on arguments was heard already; a prediction
		// is always the caller's.
		ProofArguments:            true,
		Repositories:              []string{"local/*"},
		Ceilings:                  Ceilings,
		CapabilityLifetimeSeconds: capabilityLifetime,
		Profiles:                  map[string]policy.Profile{profileName: p.Profile.Profile},
	}
	if p.Key != "" {
		key, err := filepath.EvalSymlinks(p.Key)
		if err != nil {
			return fmt.Errorf("signing key: %w", err)
		}
		c.Key = key
	} else if _, _, err := runner.GenerateKey(c.Key); err != nil {
		return err
	}
	text, err := yaml.Marshal(c)
	if err != nil {
		return fmt.Errorf("gateway configuration: %w", err)
	}
	config := p.work.path("gateway.yml")
	if err := blob.WriteFile(config, text, 0o600); err != nil {
		return fmt.Errorf("gateway configuration: %w", err)
	}
	if err := runner.Init(ctx, config); err != nil {
		return err
	}
	return p.load(config)
}

// load reads the configuration as the execution will, and derives from it what
// is expected.
func (p *proving) load(config string) (err error) {
	if p.config, err = policy.Load(config); err != nil {
		return err
	}
	keyID, err := p.config.KeyID()
	if err != nil {
		return err
	}
	if p.profile, err = p.config.Derive(profileName, keyID, p.Host); err != nil {
		return err
	}
	key, err := readPublicKey(p.config.PublicKey)
	if err != nil {
		return err
	}
	p.trust = evidence.Trust{{Public: key, SignerID: p.profile.SignerID, ExecutorIDs: []string{p.profile.ExecutorID}}}
	return nil
}
