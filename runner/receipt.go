package runner

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"underwrite/attest"
	"underwrite/attest/gittree"
	"underwrite/runner/quarantine"
	"underwrite/runner/sandbox"
	"underwrite/runner/wire"
	"underwrite/store/ledger"
)

// measureOutput measures the workspace after every process of the job is gone,
// packs it, and requires the bundle, which PackOutput has imported anew, to
// expose the same tree.
func (a *attempt) measureOutput(ctx context.Context) (attest.Bundle, error) {
	a.phase(wire.PhaseOutput)
	path := filepath.Join(a.scratch.result(), wire.OutputFile)
	bundle, err := quarantine.PackOutput(ctx, a.scratch.workspace(), a.scratch.pack(), path, a.limits())
	if err != nil {
		return attest.Bundle{}, unsupportedOutput(err)
	}
	tree, err := a.measure(ctx)
	if err != nil {
		return attest.Bundle{}, unsupportedOutput(err)
	}
	if tree != bundle.GitTree {
		return attest.Bundle{}, fmt.Errorf("the workspace measures %s but its bundle exposes %s", tree, bundle.GitTree)
	}
	return bundle, nil
}

// unsupportedOutput turns what version 1 cannot express into a definite end.
func unsupportedOutput(err error) error {
	var r *quarantine.RefusedError
	var u *gittree.Error
	switch {
	case errors.As(err, &r):
	case errors.As(err, &u) && u.Unsupported():
		r = &quarantine.RefusedError{Reason: string(u.Kind), Path: u.Path}
	default:
		return fmt.Errorf("measure output: %w", err)
	}
	return pathFault(wire.FaultUnsupportedOutput, "unsupported output: ", r)
}

// receipt signs what was measured, verifies it as the controller will, stores
// the files and then moves the ledger to complete. A crash before that leaves
// a row that fails, and files that the next attempt removes.
func (a *attempt) receipt(r sandbox.Result, bundle attest.Bundle) error {
	a.phase(wire.PhaseReceipt)
	e := attest.ExpectedReceipt{Expected: a.expected(), OutputTree: bundle.GitTree, OutputBundle: bundle, ExitCode: int64(r.ExitCode)}
	var err error
	if e.Stdout, err = describe(a.scratch.result(), wire.StdoutFile); err != nil {
		return err
	}
	if e.Stderr, err = describe(a.scratch.result(), wire.StderrFile); err != nil {
		return err
	}
	if limit := e.Sandbox.Limits.OutputBytes; e.Stdout.Bytes+e.Stderr.Bytes > limit {
		return limitFault(sandbox.Result{Fault: sandbox.FaultOutput, Measured: e.Stdout.Bytes + e.Stderr.Bytes, Limit: limit})
	}
	// One reading of the settable clock and the monotonic time of the job: the
	// difference of the two is exact whatever the clock did meanwhile.
	finished := r.StartedAt.Add(r.Elapsed.Truncate(time.Microsecond))
	payload, err := attest.NewReceipt(e, a.capability, r.StartedAt, finished)
	if err != nil {
		return fmt.Errorf("receipt: %w", err)
	}
	envelope, err := attest.Seal(attest.PayloadType, payload, a.signer.ID(), a.signer.Sign)
	if err != nil {
		return fmt.Errorf("receipt: %w", err)
	}
	now := a.nowMicro()
	verified, err := attest.VerifyReceipt(a.envelope, envelope, e, a.verify, now)
	if err != nil {
		return fmt.Errorf("own receipt does not verify: %w", err)
	}
	return a.complete(e, envelope, verified, now)
}

func describe(dir, name string) (attest.Stream, error) {
	f, err := os.Open(filepath.Join(dir, name))
	if err != nil {
		return attest.Stream{}, fmt.Errorf("captured stream: %w", err)
	}
	defer f.Close()
	sum, n, err := hashAll(f)
	if err != nil {
		return attest.Stream{}, fmt.Errorf("captured %s: %w", name, err)
	}
	return attest.Stream{SHA256: sum, Bytes: n}, nil
}

// complete makes the result durable: first the files, then the row.
func (a *attempt) complete(e attest.ExpectedReceipt, envelope []byte, v *attest.VerifiedReceipt, now time.Time) error {
	if err := a.store(); err != nil {
		return err
	}
	return a.write(func(ctx context.Context) error {
		return a.Store.SetComplete(ctx, a.key, ledger.Completion{
			Receipt: envelope, SignerID: v.SignerID, KeyID: a.signer.ID(),
			InputTree: e.InputTree, OutputTree: e.OutputTree, ExitCode: v.ExitCode, ValidatedAt: now,
			Artifacts: []ledger.Artifact{
				{Name: wire.RequestFile, SHA256: a.requestSHA256, Bytes: int64(len(a.in.Request))},
				{Name: wire.OutputFile, SHA256: e.OutputBundle.SHA256, Bytes: e.OutputBundle.Bytes},
				{Name: wire.StdoutFile, SHA256: e.Stdout.SHA256, Bytes: e.Stdout.Bytes},
				{Name: wire.StderrFile, SHA256: e.Stderr.SHA256, Bytes: e.Stderr.Bytes},
			},
		}, a.Now())
	})
}

// store moves the result's files to their place, durably.
func (a *attempt) store() error {
	dir := a.scratch.result()
	if err := os.WriteFile(filepath.Join(dir, wire.RequestFile), a.in.Request, 0o600); err != nil {
		return fmt.Errorf("store result: %w", err)
	}
	var files []*os.File
	for _, name := range []string{wire.RequestFile, wire.OutputFile, wire.StdoutFile, wire.StderrFile, "."} {
		f, err := os.Open(filepath.Join(dir, name))
		if err != nil {
			return fmt.Errorf("store result: %w", err)
		}
		defer f.Close()
		files = append(files, f)
	}
	if err := syncAll(files); err != nil {
		return fmt.Errorf("store result: %w", err)
	}
	if err := os.Rename(dir, filepath.Join(a.Config.ResultsDir(), a.key)); err != nil {
		return fmt.Errorf("store result: %w", err)
	}
	if err := syncPath(a.Config.ResultsDir()); err != nil {
		return fmt.Errorf("store result: %w", err)
	}
	return nil
}

func syncPath(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

// evidence lists the six files of a complete row, with the ledger's digests.
func (a *attempt) evidence(row *ledger.Execution) []evidenceFile {
	files := []evidenceFile{inMemory(wire.CapabilityFile, row.Capability), inMemory(wire.ReceiptFile, row.Receipt)}
	for _, f := range row.Artifacts {
		files = append(files, evidenceFile{
			name: f.Name, path: filepath.Join(a.Config.ResultsDir(), a.key, f.Name), sha256: f.SHA256, bytes: f.Bytes,
		})
	}
	return files
}
