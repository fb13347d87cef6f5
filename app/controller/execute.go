package controller

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"underwrite/attest"
	"underwrite/runner/wire"
	"underwrite/store"
)

const (
	slotWait = 2 * time.Second // until a waiting execution looks for a slot again
	// executeMargin is what one call of the gateway may take beside the job's
	// wall time, above all waiting for its turn there. After it the same
	// request is sent again.
	executeMargin = 6 * time.Hour
)

// Execute implements store.Worker: it gives the reserved request to the gateway
// until it knows how it ended, and ends the execution so.
func (c *Controller) Execute(ctx context.Context, id int64) error {
	x, err := c.Store.Execution(ctx, id)
	if err != nil || x.State.Terminal() {
		return err
	}
	ctx, r, done, ok := c.live.executing(ctx, x)
	if !ok {
		return &store.SnoozeError{For: slotWait}
	}
	defer done()
	// Read again after registering: whoever ends the execution from here on
	// cancels ctx.
	if x, err = c.Store.Execution(ctx, id); err != nil || x.State.Terminal() {
		return err
	}
	sess, err := c.Store.Session(ctx, x.SessionID)
	if err != nil {
		return err
	}
	release, ok := c.slot(sess, x)
	if !ok {
		return &store.SnoozeError{For: slotWait}
	}
	defer release()
	if x.State == store.Reserved {
		if err := c.Store.StartExecution(ctx, id, c.Now()); err != nil {
			return err
		}
	}
	return c.atGateway(ctx, x, r)
}

// slot takes one of the check's slots.
func (c *Controller) slot(sess store.Session, x store.Execution) (release func(), ok bool) {
	var name string
	for _, check := range sess.Checks {
		if check.Beat == x.Beat {
			name = check.Name
		}
	}
	for _, check := range c.Checks(sess.Repo) {
		if check.Name == name {
			return c.slots.take(check.Group, check.Concurrency)
		}
	}
	return c.slots.take("no longer configured", 1)
}

// atGateway sends the request and acts on the outcome. A crash in it leaves the
// execution running, and the same request is sent again.
func (c *Controller) atGateway(ctx context.Context, x store.Execution, r *run) error {
	request, err := attest.ParseRequest(x.Request)
	if err != nil {
		return c.ours(ctx, x, r, noMore, "reserved request: "+err.Error())
	}
	bundle := bundleRef(request.Target)
	// Or the gateway would blame the pull request for our broken disk.
	if err := c.Blobs.Check(bundle); err != nil {
		return c.executeAgain(ctx, x, r, err)
	}
	wall := time.Duration(request.Profile.Sandbox.Limits.WallSeconds) * time.Second
	call, cancel := context.WithTimeout(ctx, wall+executeMargin)
	defer cancel()
	outcome, err := c.Executor.Execute(call, x.Request, c.Blobs.Path(bundle), func(e wire.Event) { c.event(ctx, r, e) })
	switch {
	case err != nil:
		return c.executeAgain(ctx, x, r, err)
	case outcome.Status == wire.Complete:
		return c.consume(ctx, x, request, r, outcome.EvidenceDir)
	case outcome.Status == wire.Failed:
		return c.failed(ctx, x, r, outcome.Reason)
	default:
		return c.executeAgain(ctx, x, r, errors.New(outcome.Reason))
	}
}

// event takes in one event of the gateway. Progress that cannot be posted is
// not worth a failure.
func (c *Controller) event(ctx context.Context, r *run, e wire.Event) {
	if !r.event(e, c.Now()) {
		return
	}
	if err := c.Store.Touch(ctx, r.checkRunID, c.Now()); err != nil && ctx.Err() == nil {
		c.Log.Warn("show progress", "check_run", r.checkRunID, "error", err)
	}
}

// executeAgain has the same request sent again: nothing is known about the
// execution. After Patience it is given up. A receipt that the gateway may have
// then is never consumed.
func (c *Controller) executeAgain(ctx context.Context, x store.Execution, r *run, err error) error {
	err = fmt.Errorf("execution %d: %w", x.ID, err)
	if ctx.Err() != nil {
		return c.stopped(x, err)
	}
	if again := c.patient(executionKey(x.ID), err); again != nil {
		return again
	}
	return c.ours(ctx, x, r, noMore, err.Error())
}

// stopped is nil if the execution was ended by whoever cancelled it. Else this
// process is about to stop, and the job is done again after its next start.
func (c *Controller) stopped(x store.Execution, err error) error {
	now, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if x, err := c.Store.Execution(now, x.ID); err == nil && x.State.Terminal() {
		c.failing.clear(executionKey(x.ID))
		return nil
	}
	return err
}

// failed ends an execution that can never have a receipt. What the gateway's
// events said decides whose fault it is; nothing else depends on them.
func (c *Controller) failed(ctx context.Context, x store.Execution, r *run, reason string) error {
	fault, tails := r.ended()
	if fault == nil {
		fault = &wire.Fault{Kind: wire.FaultInternal}
	}
	if fault.Detail == "" {
		fault.Detail = clip(reason)
	}
	var to store.RunState
	switch fault.Kind {
	case wire.FaultWall, wire.FaultCPU, wire.FaultMemory, wire.FaultProcesses, wire.FaultWorkspace, wire.FaultOutput,
		wire.FaultSignal, wire.FaultUnsupportedOutput:
		to = store.Faulted
	case wire.FaultRefusedInput:
		to = store.Refused
	case wire.FaultPolicy:
		return c.ours(ctx, x, r, noMore, "not allowed by the gateway's policy: "+fault.Detail)
	default: // cancelled, expired, internal, or something we do not know
		return c.ours(ctx, x, r, proofs, reason)
	}
	return c.ended(x, c.Store.EndExecution(ctx, x.ID, to, encode(*fault), tails, c.Now()))
}

// ours ends an execution by a fault of our own, and maybe reserves a new proof.
func (c *Controller) ours(ctx context.Context, x store.Execution, r *run, after store.Again, detail string) error {
	_, tails := r.ended()
	fault := wire.Fault{Kind: wire.FaultInternal, Detail: clip(detail)}
	again, err := c.Store.EndOurFault(ctx, x.ID, encode(fault), tails, after, buildRequest, c.Now())
	if err == nil {
		c.Log.Warn("execution failed by our own fault", "execution", x.ID, "reason", fault.Detail, "new_proof", again)
	}
	return c.ended(x, err)
}

func (c *Controller) ended(x store.Execution, err error) error {
	if err == nil || moved(err) {
		c.failing.clear(executionKey(x.ID))
		return nil
	}
	return err
}

func executionKey(id int64) string { return "execution " + strconv.FormatInt(id, 10) }
