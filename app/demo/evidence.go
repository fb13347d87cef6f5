package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"underwrite/app/serve"
	"underwrite/attest"
	"underwrite/runner/wire"
	"underwrite/store"
	"underwrite/store/blob"
)

// report collects the results from the hub, and the evidence behind them from
// the controller's database and blobs.
func (d *demo) report(ctx context.Context) (Report, error) {
	db, err := store.Open(ctx, serve.Database(d.path("controller")), store.Options{})
	if err != nil {
		return Report{}, err
	}
	defer db.Close()
	blobs, err := blob.Open(serve.Blobs(d.path("controller")))
	if err != nil {
		return Report{}, err
	}
	var report Report
	for i, head := range d.heads {
		run, ok := d.run(head)
		if !ok {
			return Report{}, fmt.Errorf("pull request %d has no completed check run", i+1)
		}
		r := Result{
			Number: int64(i + 1), Check: run.Name, Conclusion: run.Conclusion, Reason: run.Title, Seconds: d.watch.seconds(head),
		}
		if err := d.export(ctx, db, blobs, &r); err != nil {
			return Report{}, fmt.Errorf("evidence of #%d: %w", r.Number, err)
		}
		report.PullRequests = append(report.PullRequests, r)
	}
	return report, nil
}

// export writes what a receipt is verified with where people can look at it:
// the six files in a directory of their own, the source bundle and the
// expectation beside it.
func (d *demo) export(ctx context.Context, db *store.Store, blobs *blob.Store, r *Result) error {
	runs, err := db.CheckRuns(ctx, repository, r.Number)
	if err != nil {
		return err
	}
	if len(runs) != 1 {
		return fmt.Errorf("%d check runs in the database, want 1", len(runs))
	}
	run := runs[0]
	if run.Evidence == nil {
		return nil
	}
	target, err := attest.ParseTarget(run.Session.Target)
	if err != nil {
		return err
	}
	r.ReceiptSHA256 = run.Evidence.ReceiptSHA256
	beside := d.path(fmt.Sprintf("pull-%d", r.Number))
	r.EvidenceDir = filepath.Join(beside, "evidence")
	if err := os.MkdirAll(r.EvidenceDir, 0o700); err != nil {
		return err
	}
	return errors.Join(
		write(r.EvidenceDir, wire.RequestFile, run.Execution.Request),
		write(r.EvidenceDir, wire.CapabilityFile, run.Evidence.Capability),
		write(r.EvidenceDir, wire.ReceiptFile, run.Evidence.Receipt),
		copyBlob(blobs, run.Evidence.Output, r.EvidenceDir, wire.OutputFile),
		copyBlob(blobs, run.Evidence.Stdout, r.EvidenceDir, wire.StdoutFile),
		copyBlob(blobs, run.Evidence.Stderr, r.EvidenceDir, wire.StderrFile),
		copyBlob(blobs, blob.Ref{SHA256: target.ObjectBundleSHA256, Bytes: target.ObjectBundleBytes}, beside, sourceFile),
		write(beside, expectationFile, run.Execution.Request),
	)
}

// What lies beside an evidence directory of the demo.
const (
	sourceFile      = "source.bundle"
	expectationFile = "expectation.json"
)

// howToVerify is the command that verifies a result offline.
func (d *demo) howToVerify(r Result) string {
	beside := filepath.Dir(r.EvidenceDir)
	return fmt.Sprintf("%s verify %s --key %s --source-bundle %s --expect %s", d.Self, r.EvidenceDir,
		d.path("gateway", "key.pub.pem"), filepath.Join(beside, sourceFile), filepath.Join(beside, expectationFile))
}

func write(dir, name string, content []byte) error {
	return os.WriteFile(filepath.Join(dir, name), content, 0o600)
}

func copyBlob(blobs *blob.Store, ref blob.Ref, dir, name string) error {
	in, err := blobs.Open(ref)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
