package runner

import (
	"context"
	"errors"
	"fmt"
	"os"

	"underwrite/runner/policy"
	"underwrite/store/ledger"
)

// Init makes what the configuration names and does not exist yet: the state
// directory with an empty ledger, the outbox and the directory of diagnostics.
// It also brings an older ledger to the current schema. Nothing that exists is
// emptied or replaced; modes and the outbox's group are put right.
func Init(ctx context.Context, configPath string) error {
	c, err := policy.Load(configPath)
	if err != nil {
		return err
	}
	for _, dir := range []string{c.State, c.LocksDir(), c.ScratchDir(), c.ResultsDir(), c.SpoolDir(), c.Diagnostics} {
		if err := makeDir(dir, 0o700, -1); err != nil {
			return err
		}
	}
	mode := os.FileMode(0o700)
	if c.ConsumerGID != nil {
		mode = 0o710
	}
	if err := makeDir(c.Outbox, mode, c.GID()); err != nil {
		return err
	}
	if err := resultsWithoutLedger(c); err != nil {
		return err
	}
	return ledger.Create(ctx, c.LedgerPath())
}

func makeDir(path string, mode os.FileMode, gid int) error {
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("make directory: %w (its parent must exist)", err)
	}
	if info, err := os.Lstat(path); err != nil || !info.IsDir() {
		return fmt.Errorf("make directory: %s exists and is none", path)
	}
	if err := os.Lchown(path, -1, gid); err != nil {
		return fmt.Errorf("make directory: %w", err)
	}
	if err := os.Chmod(path, mode); err != nil {
		return fmt.Errorf("make directory: %w", err)
	}
	return nil
}

// resultsWithoutLedger refuses to start an empty ledger where executions took
// place: it would accept their challenges again.
func resultsWithoutLedger(c *policy.Config) error {
	if _, err := os.Lstat(c.LedgerPath()); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	names, err := os.ReadDir(c.ResultsDir())
	if err != nil {
		return fmt.Errorf("state directory: %w", err)
	}
	if len(names) > 0 {
		return fmt.Errorf("%s is gone but %s holds results: restore the ledger, or use a new state directory and signing key",
			c.LedgerPath(), c.ResultsDir())
	}
	return nil
}
