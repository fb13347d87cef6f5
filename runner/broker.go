package runner

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"underwrite/attest"
	"underwrite/runner/policy"
	"underwrite/runner/sandbox"
	"underwrite/runner/wire"
	"underwrite/store/ledger"
)

// Store is what the broker needs of the ledger; *ledger.Ledger implements it.
// An error leaves it open whether the change was made.
type Store interface {
	Reserve(ctx context.Context, r ledger.Reservation, now time.Time) error
	Refuse(ctx context.Context, r ledger.Reservation, f ledger.Failure, now time.Time) error
	SetReady(ctx context.Context, key string, capability []byte, payloadSHA256 string, now time.Time) error
	SetExecuting(ctx context.Context, key string, now time.Time) error
	SetComplete(ctx context.Context, key string, c ledger.Completion, now time.Time) error
	SetFailed(ctx context.Context, key string, f ledger.Failure, now time.Time) error
	Release(ctx context.Context, key string) error
	Get(ctx context.Context, key string) (*ledger.Execution, error)
	Leftovers(ctx context.Context) ([]string, error)
}

// Signer is the signing key, as far as the broker sees it.
type Signer interface {
	ID() string // the profile's keyId
	Sign(message []byte) ([]byte, error)
	Verify(message, signature []byte) bool
}

// Broker turns one request into one evidence directory. It decides by its own
// configuration alone and trusts nothing in a request, a bundle or an event.
type Broker struct {
	Config  *policy.Config
	Host    policy.Host
	Store   Store
	Runtime sandbox.Runtime
	LoadKey func() (Signer, error) // called once, after the request is accepted
	Now     func() time.Time       // the trusted clock
	Events  *Events                // may be nil
	Log     io.Writer              // the operator's; one line per problem

	// Mount and Unmount give and take the workspace's file system.
	Mount   func(dir string, bytes int64) error
	Unmount func(dir string) error
}

// Input is one call of the broker.
type Input struct {
	Request     []byte // the exact bytes of request.json
	BundlePath  string // the source bundle
	EvidenceDir string // to appear, directly below the outbox
	Diagnostics string // directory for a signed diagnostic, or empty
}

// Execute runs the phases of one request, in the order of wire's Phase
// constants, and says how it ended. It may be called again with the same
// request after every outcome: a complete execution is published again, never
// run again.
//
// Cancelling ctx stops the job and tears its sandbox down before Execute returns.
func (b *Broker) Execute(ctx context.Context, in Input) wire.Outcome {
	b.phase(wire.PhasePolicy)
	a := &attempt{Broker: b, in: in, requestSHA256: attest.SHA256Hex(in.Request)}
	var err error
	if a.request, err = attest.ParseRequest(in.Request); err != nil {
		f := &fault{Fault: wire.Fault{Kind: wire.FaultPolicy}, reason: fmt.Sprintf("the request is malformed: %v", err)}
		b.Events.send(wire.Event{Fault: &f.Fault})
		return wire.NewOutcome(wire.Failed, f.reason)
	}
	if err := a.prepare(); err != nil {
		return retry(err)
	}
	lock, err := ledger.Acquire(b.Config.LocksDir(), a.key)
	if errors.Is(err, ledger.ErrBusy) {
		return retry(errors.New("this request is being executed by another process: wait for it and ask again"))
	}
	if err != nil {
		return retry(err)
	}
	defer lock.Release()
	return a.decide(ctx)
}

func retry(err error) wire.Outcome { return wire.NewOutcome(wire.Retry, err.Error()) }

func (b *Broker) phase(p string) { b.Events.send(wire.Event{Phase: p}) }

func (b *Broker) logf(format string, args ...any) { fmt.Fprintf(b.Log, format+"\n", args...) }

// storeTimeout bounds one ledger operation. Cancelling a run must not keep its
// end from being written down.
const storeTimeout = 30 * time.Second

func storeContext() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), storeTimeout)
}

// stored runs one ledger operation.
func stored(op func(ctx context.Context) error) error {
	ctx, cancel := storeContext()
	defer cancel()
	return op(ctx)
}
