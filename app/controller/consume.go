package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"underwrite/app/evidence"
	"underwrite/attest"
	"underwrite/store"
)

const (
	acknowledgeTimeout = time.Minute
	consumeTimeout     = 10 * time.Minute
)

// consume verifies the evidence in dir against our own records and records it:
// running → passed or contradicted, once and for all. Now that the evidence is
// there, superseding or stopping does not interrupt it any more: the directory
// is to be acknowledged in every case.
func (c *Controller) consume(ctx context.Context, x store.Execution, request attest.Request, r *run, dir string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), consumeTimeout)
	defer cancel()
	limits := request.Profile.Sandbox.Limits
	files, err := evidence.Read(dir, c.Blobs, evidence.LimitsFor(limits))
	if err != nil {
		return c.executeAgain(ctx, x, r, err) // the gateway publishes it again
	}
	result, err := evidence.Verify(ctx, files, c.Blobs, evidence.Expectation{
		Request: x.Request, SourceBundle: c.Blobs.Path(bundleRef(request.Target)), Trust: c.Trust,
		Inspector: c.Inspector(limits), Now: c.Now(),
	})
	if errors.Is(err, evidence.ErrInvalid) {
		// The directory stays with the gateway, for those who look into it.
		return c.ours(ctx, x, r, noMore, "the gateway's evidence does not verify: "+err.Error())
	}
	if err != nil {
		return c.executeAgain(ctx, x, r, err)
	}
	record, state, err := toRecord(x, files, result, dir)
	if err != nil {
		return err
	}
	_, err = c.Store.Consume(ctx, record, state, c.Now())
	switch {
	case errors.Is(err, store.ErrConflict):
		c.Log.Error("refused other evidence for a consumed execution", "execution", x.ID, "evidence", dir)
		return nil
	case moved(err):
		// Superseded or cancelled meanwhile: nobody wants it any more.
		return c.acknowledge(ctx, dir)
	}
	return c.ended(x, err)
}

// validation is the record of a verification.
type validation struct {
	Steps            []evidence.Step `json:"steps"`
	CapabilitySHA256 string          `json:"capabilityPayloadSha256"`
	ReceiptSHA256    string          `json:"receiptPayloadSha256"`
	IssuedAt         string          `json:"issuedAt"`
	StartedAt        string          `json:"startedAt"`
	FinishedAt       string          `json:"finishedAt"`
	Predicted        int64           `json:"predicted"`
	ExitCode         int64           `json:"exitCode"`
}

func toRecord(x store.Execution, f *evidence.Files, r *evidence.Result, dir string) (store.Evidence, store.RunState, error) {
	v, err := json.Marshal(validation{
		Steps: r.Steps, CapabilitySHA256: r.Receipt.Capability.PayloadSHA256, ReceiptSHA256: r.Receipt.PayloadSHA256,
		IssuedAt:  attest.FormatTimestamp(r.Receipt.Capability.IssuedAt),
		StartedAt: attest.FormatTimestamp(r.Receipt.StartedAt), FinishedAt: attest.FormatTimestamp(r.Receipt.FinishedAt),
		Predicted: r.Predicted, ExitCode: r.ExitCode,
	})
	if err != nil {
		return store.Evidence{}, "", fmt.Errorf("record validation: %w", err)
	}
	state := store.Passed
	if r.Contradicted {
		state = store.Contradicted
	}
	return store.Evidence{
		ExecutionID: x.ID, Capability: f.Capability, Receipt: f.Receipt,
		CapabilitySHA256: attest.SHA256Hex(f.Capability), ReceiptSHA256: attest.SHA256Hex(f.Receipt),
		SignerID: r.Receipt.SignerID, ExecutorID: r.Receipt.ExecutorID, KeyID: r.KeyID, ExitCode: r.ExitCode,
		InputTree: r.InputTree, OutputTree: r.Output.GitTree, StartedAt: r.Receipt.StartedAt, FinishedAt: r.Receipt.FinishedAt,
		Output: f.Output, Stdout: f.Stdout, Stderr: f.Stderr, Validation: v, Transport: dir,
	}, state, nil
}

// Acknowledge implements store.Worker: the gateway may remove its directory
// once the evidence is durable here. Until it knows, it is told again.
func (c *Controller) Acknowledge(ctx context.Context, id int64) error {
	e, err := c.Store.Evidence(ctx, id)
	if err != nil || !e.AcknowledgedAt.IsZero() {
		return err
	}
	if err := c.acknowledge(ctx, e.Transport); err != nil {
		return err
	}
	return c.Store.SetAcknowledged(ctx, id, c.Now())
}

func (c *Controller) acknowledge(ctx context.Context, dir string) error {
	ctx, cancel := context.WithTimeout(ctx, acknowledgeTimeout)
	defer cancel()
	if err := c.Executor.Acknowledge(ctx, dir); err != nil {
		return fmt.Errorf("acknowledge evidence: %w", err)
	}
	return nil
}
