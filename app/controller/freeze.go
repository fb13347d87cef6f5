package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"underwrite/attest"
	"underwrite/handlers/freeze"
	"underwrite/runner/quarantine"
	"underwrite/runner/wire"
	"underwrite/store"
	"underwrite/store/blob"
)

const freezeTimeout = 30 * time.Minute

// Freeze implements store.Worker: freezing → ready or failed. Everything that
// can be refused is refused here, before a number and a challenge are spent.
func (c *Controller) Freeze(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, freezeTimeout)
	defer cancel()
	ctx, done, ok := c.live.freezing(ctx, id)
	if !ok {
		return &store.SnoozeError{For: time.Second}
	}
	defer done()
	// Read after registering: whoever ends the session from here on cancels ctx.
	sess, err := c.Store.Session(ctx, id)
	if err != nil || sess.State != store.Freezing {
		return err
	}
	frozen, err := c.freeze(ctx, sess)
	if err == nil {
		err = c.Store.SetReady(ctx, id, frozen, buildRequest, c.Now())
	}
	switch fault, refused := refusal(err); {
	case err == nil || moved(err):
		c.failing.clear(id)
		return nil
	case refused:
		return c.failSession(ctx, id, store.Refused, fault)
	default:
		return c.freezeAgain(ctx, sess, fmt.Errorf("freeze %s#%d: %w", sess.Repo, sess.Number, err))
	}
}

// freezeAgain has the freezing tried again, unless it has failed for long. A
// pull request that moved gets another session.
func (c *Controller) freezeAgain(ctx context.Context, sess store.Session, err error) error {
	if ctx.Err() != nil {
		return err // stopped: the row says by whom, if by somebody
	}
	if errors.Is(err, freeze.ErrMoved) {
		if failed := c.resync(ctx, sess); failed != nil {
			err = failed
		}
	}
	if again := c.patient(sess.ID, err); again != nil {
		return again
	}
	return c.failSession(ctx, sess.ID, store.OurFault, wire.Fault{Kind: wire.FaultInternal, Detail: clip(err.Error())})
}

func (c *Controller) failSession(ctx context.Context, id string, to store.RunState, fault wire.Fault) error {
	err := c.Store.FailSession(ctx, id, to, encode(fault), c.Now())
	if err == nil || moved(err) {
		c.failing.clear(id)
		return nil
	}
	return err
}

// freeze freezes the pull request, stores its files as blobs and looks at the
// tree. If it is not the session's target, that is freeze.ErrMoved.
func (c *Controller) freeze(ctx context.Context, sess store.Session) (f store.Frozen, err error) {
	dir, err := os.MkdirTemp(c.Scratch, "freeze-*")
	if err != nil {
		return f, err
	}
	defer os.RemoveAll(dir)
	frozen, err := c.Freezer.Freeze(ctx, sess.Repo, sess.Number, dir)
	if err != nil {
		return f, err
	}
	t := frozen.Target
	if t.Repo != sess.Repo || t.Number != sess.Number || t.HeadSHA != sess.HeadSHA || t.BaseSHA != sess.BaseSHA || t.State != "open" {
		return f, fmt.Errorf("%w: it is %s onto %s, %s", freeze.ErrMoved, t.HeadSHA, t.BaseSHA, t.State)
	}
	for _, file := range []struct {
		path string
		ref  blob.Ref
	}{
		{frozen.DiffPath, blob.Ref{SHA256: t.DiffSHA256, Bytes: t.DiffBytes}},
		{frozen.ContextPath, blob.Ref{SHA256: t.TrustedContextSHA256, Bytes: t.TrustedContextBytes}},
		{frozen.BundlePath, bundleRef(t)},
	} {
		if err := c.keep(file.path, file.ref); err != nil {
			return f, err
		}
	}
	if err := c.look(ctx, sess.Checks, t, &f); err != nil {
		return f, err
	}
	if f.Target, err = t.Canonical(); err != nil {
		return f, err
	}
	f.TargetSHA256 = attest.SHA256Hex(f.Target)
	return f, nil
}

// look measures the head's tree, within the limits of the check with the
// largest workspace: what is too large for that one can be refused for all. A
// check whose working directory is no directory is refused alone.
func (c *Controller) look(ctx context.Context, list []store.Check, t attest.Target, f *store.Frozen) error {
	var limits attest.Limits
	var cwds []string
	for _, check := range list {
		p, err := attest.ParseProfile(check.Profile)
		if err != nil {
			return fmt.Errorf("profile of check %s: %w", check.Name, err)
		}
		if p.Sandbox.Limits.WorkspaceBytes > limits.WorkspaceBytes {
			limits = p.Sandbox.Limits
		}
		cwds = append(cwds, p.Job.Cwd)
	}
	tree, refused, err := c.Inspector(limits).Source(ctx, c.Blobs.Path(bundleRef(t)), t, cwds)
	if err != nil {
		return err
	}
	f.InputTree, f.Refused = tree, map[int64][]byte{}
	for i, check := range list {
		if reason := refused[cwds[i]]; reason != nil {
			fault, _ := refusal(reason)
			f.Refused[check.Beat] = encode(fault)
		}
	}
	return nil
}

// keep stores a frozen file, which must have the digest that the target says.
func (c *Controller) keep(path string, want blob.Ref) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	got, err := c.Blobs.Put(file, want.Bytes)
	if err != nil {
		return err
	}
	if got != want {
		return fmt.Errorf("frozen file %s does not have the digest in the target", path)
	}
	return nil
}

func bundleRef(t attest.Target) blob.Ref {
	return blob.Ref{SHA256: t.ObjectBundleSHA256, Bytes: t.ObjectBundleBytes}
}

// refusal is the fault of a pull request that cannot be frozen or run. The path
// is hostile: it is quoted where it is not plain.
func refusal(err error) (wire.Fault, bool) {
	f := wire.Fault{Kind: wire.FaultRefusedInput}
	var byFreeze *freeze.RefusedError
	var byQuarantine *quarantine.RefusedError
	switch {
	case errors.As(err, &byFreeze):
		f.Detail, f.Path = clip(byFreeze.Reason), byFreeze.Path
	case errors.As(err, &byQuarantine):
		f.Detail, f.Path = clip(byQuarantine.Reason), byQuarantine.Path
	default:
		return wire.Fault{}, false
	}
	if quoted := strconv.Quote(f.Path); quoted != `"`+f.Path+`"` {
		f.Path = quoted
	}
	f.Path = clip(f.Path)
	return f, true
}

// encode makes a fault's JSON.
func encode(f wire.Fault) []byte {
	b, err := json.Marshal(f)
	if err != nil { // strings and integers always encode
		panic("controller: " + err.Error())
	}
	return b
}
