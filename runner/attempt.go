package runner

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"underwrite/attest"
	"underwrite/runner/policy"
	"underwrite/runner/quarantine"
	"underwrite/runner/wire"
	"underwrite/store/ledger"
)

// attempt is one request on its way. It is used by one goroutine and works
// under the ledger lock of its replay key.
type attempt struct {
	*Broker
	in            Input
	request       attest.Request
	requestSHA256 string
	key           string // replay key
	publisher     publisher
	scratch       scratch

	refused  error // of the policy, or nil
	accepted policy.Accepted
	signer   Signer
	verify   attest.SignatureVerifier

	source     *quarantine.Source
	tree       *quarantine.Tree
	inputTree  string
	envelope   []byte // of the capability
	capability *attest.VerifiedCapability
	// started is set before the ledger is asked to allow the launch: from then
	// on the request can never be tried again.
	started bool
	usage   wire.Usage
}

// fault is a definite end without a receipt: trying again would change nothing.
type fault struct {
	wire.Fault
	reason string // one line that a person can act on
}

func (f *fault) Error() string { return f.reason }

// errUnknown wraps a failed ledger write: the row may have moved or not. The
// next attempt finds out, by the row and by its lock.
var errUnknown = errors.New("the ledger could not be written")

// prepare derives the attempt's identity and judges it by the configuration.
// An error is the gateway's own fault.
func (a *attempt) prepare() error {
	job, err := attest.JobDigest(a.request.Profile.Job)
	if err != nil {
		return err
	}
	r := a.request
	a.key, err = attest.ReplayKey(r.Profile.SignerID, r.Profile.ExecutorID, r.SessionID, r.Challenge, r.Action, job)
	if err != nil {
		return err
	}
	a.scratch = scratch{a.Config.ScratchDir(), a.key}
	a.publisher = publisher{outbox: a.Config.Outbox, gid: a.Config.GID()}
	if err := a.publisher.check(a.in.EvidenceDir); err != nil {
		return err
	}
	keyID, err := a.Config.KeyID()
	if err != nil {
		return err
	}
	a.accepted, err = a.Config.Accept(r, keyID, a.Host)
	var refusal *policy.Refusal
	if errors.As(err, &refusal) {
		a.refused = &fault{
			Fault:  wire.Fault{Kind: wire.FaultPolicy, Detail: refusal.Field},
			reason: "the gateway's policy refuses the request: " + refusal.Error(),
		}
		return nil
	}
	return err
}

// loadKey opens the signing key and requires it to be the configured one.
func (a *attempt) loadKey() error {
	if a.signer != nil {
		return nil
	}
	signer, err := a.LoadKey()
	if err != nil {
		return err
	}
	want, err := a.Config.KeyID()
	if err != nil {
		return err
	}
	if signer.ID() != want {
		return fmt.Errorf("signing key %s has keyId %s, but the configured public key %s has %s: configure the pair",
			a.Config.Key, signer.ID(), a.Config.PublicKey, want)
	}
	a.signer = signer
	a.verify = func(pae []byte, _ string, signature []byte) (string, error) {
		if !signer.Verify(pae, signature) {
			return "", errors.New("signature does not verify with the gateway's own key")
		}
		return a.Config.Signer, nil
	}
	return nil
}

func (a *attempt) reservation() ledger.Reservation {
	return ledger.Reservation{
		ReplayKey: a.key, SessionID: a.request.SessionID, Challenge: a.request.Challenge, RequestSHA256: a.requestSHA256,
	}
}

// decide reserves the replay identity, or resumes what is there.
func (a *attempt) decide(ctx context.Context) wire.Outcome {
	if a.refused == nil {
		if err := a.loadKey(); err != nil {
			return retry(err)
		}
	}
	a.phase(wire.PhaseReserve)
	err := stored(func(ctx context.Context) error {
		if a.refused != nil { // recorded, so that no later configuration runs what was called failed
			return a.Store.Refuse(ctx, a.reservation(), failure(a.refused), a.Now())
		}
		return a.Store.Reserve(ctx, a.reservation(), a.Now())
	})
	switch {
	case errors.Is(err, ledger.ErrReserved):
		return a.resume()
	case errors.Is(err, ledger.ErrChallenge):
		return a.announce(&fault{wire.Fault{Kind: wire.FaultPolicy}, "the session's challenge was already used by another request"})
	case errors.Is(err, ledger.ErrHeld): // if that one is released, this one can still run
		return retry(err)
	case err != nil:
		return retry(fmt.Errorf("%w: %w", errUnknown, err))
	case a.refused != nil:
		return a.announce(a.refused)
	}
	defer a.clean()
	err = a.run(ctx)
	if err == nil {
		return a.publish()
	}
	return a.end(err)
}

// resume answers a request whose identity is in the ledger already.
func (a *attempt) resume() wire.Outcome {
	var row *ledger.Execution
	err := stored(func(ctx context.Context) (err error) {
		row, err = a.Store.Get(ctx, a.key)
		return err
	})
	switch {
	case err != nil:
		return retry(err)
	case row.RequestSHA256 != a.requestSHA256:
		return a.announce(&fault{wire.Fault{Kind: wire.FaultPolicy}, "the replay identity was already used by a request with other content"})
	case row.State == ledger.Complete:
		return a.publish()
	case row.State == ledger.Failed:
		return a.announce(recorded(row.Failure))
	}
	// The lock was free, so the process that worked on it is gone.
	if err := a.Broker.abandon(a.key); err != nil {
		return retry(err)
	}
	return a.announce(errInterrupted)
}

var errInterrupted = &fault{
	wire.Fault{Kind: wire.FaultInternal, Detail: "interrupted"},
	"the gateway's process ended while it worked on the request",
}

// end writes down why there is no receipt.
func (a *attempt) end(err error) wire.Outcome {
	var f *fault
	definite := errors.As(err, &f)
	switch {
	case errors.Is(err, errUnknown):
		return retry(err)
	case !definite && !a.started:
		if relErr := stored(func(ctx context.Context) error { return a.Store.Release(ctx, a.key) }); relErr != nil {
			return retry(fmt.Errorf("%w (after: %v)", relErr, err))
		}
		return retry(err)
	case !definite:
		f = &fault{wire.Fault{Kind: wire.FaultInternal, Detail: err.Error()}, "the gateway failed: " + err.Error()}
	}
	if err := stored(func(ctx context.Context) error { return a.Store.SetFailed(ctx, a.key, failure(f), a.Now()) }); err != nil {
		return retry(fmt.Errorf("%w: %w (after: %v)", errUnknown, err, f))
	}
	return a.announce(f)
}

// announce tells a definite failure, which the ledger has already, to whoever
// watches and in a signed diagnostic.
func (a *attempt) announce(err error) wire.Outcome {
	var f *fault
	if !errors.As(err, &f) {
		f = &fault{wire.Fault{Kind: wire.FaultInternal}, err.Error()}
	}
	a.Events.send(wire.Event{Fault: &f.Fault})
	if err := a.diagnose(f); err != nil {
		a.logf("diagnostic: %v", err)
	}
	return wire.NewOutcome(wire.Failed, f.reason)
}

// failure and recorded turn a fault into its ledger form and back.
func failure(err error) ledger.Failure {
	var f *fault
	if !errors.As(err, &f) {
		return ledger.Failure{Reason: err.Error()}
	}
	b, err := json.Marshal(f.Fault)
	if err != nil {
		b = nil // a fault has strings and numbers only
	}
	return ledger.Failure{Reason: f.reason, Fault: b}
}

func recorded(l ledger.Failure) *fault {
	f := &fault{reason: l.Reason}
	if err := json.Unmarshal(l.Fault, &f.Fault); err != nil {
		f.Fault = wire.Fault{Kind: wire.FaultInternal}
	}
	return f
}

// publish makes the evidence directory of a complete execution appear.
func (a *attempt) publish() wire.Outcome {
	a.phase(wire.PhasePublish)
	var row *ledger.Execution
	err := stored(func(ctx context.Context) (err error) {
		row, err = a.Store.Get(ctx, a.key)
		return err
	})
	if err == nil {
		err = a.publisher.publish(a.in.EvidenceDir, a.evidence(row))
	}
	if err != nil {
		return retry(err)
	}
	return wire.Outcome{Version: wire.Version, Status: wire.Complete, EvidenceDir: a.in.EvidenceDir}
}

func (a *attempt) clean() {
	if err := a.scratch.remove(a.Unmount); err != nil {
		a.logf("scratch: %v", err)
	}
}

// abandon ends a row that its process left behind, and removes what that
// process stored for it. The caller holds the row's lock.
func (b *Broker) abandon(key string) error {
	err := stored(func(ctx context.Context) error {
		return b.Store.SetFailed(ctx, key, failure(errInterrupted), b.Now())
	})
	if err != nil {
		return err
	}
	return os.RemoveAll(filepath.Join(b.Config.ResultsDir(), key))
}

// Sweep ends every row that a dead process left behind and removes its scratch
// space and lock file. Every execution calls it at start; living processes hold their locks
// and are left alone.
func (b *Broker) Sweep() error {
	var rows []string
	err := stored(func(ctx context.Context) (err error) {
		rows, err = b.Store.Leftovers(ctx)
		return err
	})
	if err != nil {
		return err
	}
	var errs []error
	for _, key := range rows {
		errs = append(errs, b.underLock(key, func() error { return b.abandon(key) }))
	}
	for _, dir := range []string{b.Config.ScratchDir(), b.Config.LocksDir()} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return fmt.Errorf("sweep: %w", err)
		}
		for _, e := range entries {
			if key := e.Name(); len(key) == hex.EncodedLen(sha256.Size) { // not the resident gateway's lock
				errs = append(errs, b.underLock(key, func() error { return scratch{b.Config.ScratchDir(), key}.remove(b.Unmount) }))
			}
		}
	}
	return errors.Join(errs...)
}

// underLock runs f if no living process works on the row. A row that ended
// while the lock was taken is no error.
func (b *Broker) underLock(key string, f func() error) error {
	lock, err := ledger.Acquire(b.Config.LocksDir(), key)
	if errors.Is(err, ledger.ErrBusy) {
		return nil
	}
	if err != nil {
		return err
	}
	defer lock.Release()
	if err := f(); !errors.Is(err, ledger.ErrState) {
		return err
	}
	return nil
}

// nowMicro is the trusted clock in the protocol's resolution.
func (b *Broker) nowMicro() time.Time { return b.Now().UTC().Truncate(time.Microsecond) }
