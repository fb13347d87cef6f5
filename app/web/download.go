package web

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"underwrite/attest"
	"underwrite/handlers/checks"
	"underwrite/runner/wire"
	"underwrite/store"
	"underwrite/store/blob"
)

// Downloads beside the six files of the evidence.
const (
	archiveFile = "evidence.tar"  // the six, in archiveDir
	archiveDir  = "evidence"      // what it unpacks to
	sourceFile  = "source.bundle" // what the job was given
)

// downloadTimeout bounds one download. The server's own bound is meant for
// pages.
const downloadTimeout = 15 * time.Minute

// file is something to download: bytes from the database, or a blob.
type file struct {
	Name   string
	Href   string
	About  string
	SHA256 string
	Size   int64
	text   bool
	data   []byte
	ref    blob.Ref
}

// files lists what can be downloaded of a run with a receipt.
func files(run store.CheckRun, target attest.Target) []file {
	e, x := run.Evidence, run.Execution
	list := []file{
		{Name: wire.ReceiptFile, About: "receipt, a DSSE envelope", data: e.Receipt},
		{Name: wire.CapabilityFile, About: "capability, a DSSE envelope", data: e.Capability},
		{Name: wire.RequestFile, About: "request as it was reserved", data: x.Request},
		{Name: wire.OutputFile, About: "output tree, a git bundle", ref: e.Output},
		{Name: wire.StdoutFile, About: "standard output, raw", ref: e.Stdout, text: true},
		{Name: wire.StderrFile, About: "standard error, raw", ref: e.Stderr, text: true},
		{Name: sourceFile, About: "source that the job was given, a git bundle",
			ref: blob.Ref{SHA256: target.ObjectBundleSHA256, Bytes: target.ObjectBundleBytes}},
	}
	for i := range list {
		f := &list[i]
		f.Href = ExecutionPath(run.ExternalID) + "/" + f.Name
		if f.data != nil {
			f.ref = blob.Ref{SHA256: digestOf(f.data), Bytes: int64(len(f.data))}
		}
		f.SHA256, f.Size = f.ref.SHA256, f.ref.Bytes
	}
	return list
}

// open opens the file; a blob's digest is compared first.
func (f file) open(blobs Blobs) (io.ReadCloser, error) {
	if f.data != nil {
		return io.NopCloser(bytes.NewReader(f.data)), nil
	}
	b, err := blobs.Open(f.ref)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.Name, err)
	}
	return b, nil
}

// download serves a file of a run with a receipt.
func (s *site) download(w http.ResponseWriter, r *http.Request) {
	run, _, err := s.Records.CheckRunByExternalID(r.Context(), r.PathValue("id"))
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		s.failed(w, r, err)
		return
	}
	if err != nil || run.Evidence == nil || run.Execution == nil {
		s.errorPage(w, r, http.StatusNotFound, "There is no such file. "+checks.NoReceipt)
		return
	}
	target, err := attest.ParseTarget(run.Session.Target)
	if err != nil {
		s.failed(w, r, err)
		return
	}
	list, name := files(run, target), r.PathValue("file")
	if name == archiveFile {
		s.serveArchive(w, r, run, list)
		return
	}
	for _, f := range list {
		if f.Name == name {
			s.serveFile(w, r, run, f)
			return
		}
	}
	s.notFound(w, r)
}

// attachment sets the headers of a download that never changes, and answers by
// itself if the reader has it.
func attachment(w http.ResponseWriter, r *http.Request, name, contentType, digest string, size int64) (done bool) {
	h := w.Header()
	h.Set("Content-Security-Policy", "default-src 'none'; sandbox; frame-ancestors 'none'")
	h.Set("Content-Disposition", `attachment; filename="`+name+`"`)
	h.Set("Cache-Control", "private, max-age=31536000, immutable")
	h.Set("ETag", `"`+digest+`"`)
	if r.Header.Get("If-None-Match") == h.Get("ETag") {
		w.WriteHeader(http.StatusNotModified)
		return true
	}
	h.Set("Content-Type", contentType)
	h.Set("Content-Length", fmt.Sprint(size))
	if r.Method == http.MethodHead {
		return true
	}
	// Without a deadline to set, as in tests, there is none to extend.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(downloadTimeout))
	return false
}

func (s *site) serveFile(w http.ResponseWriter, r *http.Request, run store.CheckRun, f file) {
	body, err := f.open(s.Blobs)
	if err != nil {
		s.failed(w, r, err)
		return
	}
	defer body.Close()
	name, contentType := f.Name, "application/octet-stream"
	if f.text {
		name, contentType = fmt.Sprintf("%s-%s.txt", f.Name, short(run.ExternalID)), "text/plain; charset=utf-8"
	}
	if attachment(w, r, name, contentType, f.SHA256, f.Size) {
		return
	}
	s.send(r, func() error { return copyAll(w, body, f.Size) })
}

// serveArchive serves the evidence directory. Its bytes depend on the evidence
// alone, so the receipt's digest names them.
func (s *site) serveArchive(w http.ResponseWriter, r *http.Request, run store.CheckRun, list []file) {
	var parts []part
	defer func() {
		for _, p := range parts {
			p.body.Close()
		}
	}()
	size := int64(3 * tarBlock) // the directory, and the end
	for _, f := range list {
		if f.Name == sourceFile {
			continue
		}
		body, err := f.open(s.Blobs)
		if err != nil {
			s.failed(w, r, err)
			return
		}
		parts = append(parts, part{f, body})
		size += tarBlock + (f.Size+tarBlock-1)/tarBlock*tarBlock
	}
	if attachment(w, r, archiveFile, "application/x-tar", run.Evidence.ReceiptSHA256, size) {
		return
	}
	s.send(r, func() error { return writeArchive(w, parts, run.Evidence.FinishedAt) })
}

// send runs write and logs its failure, unless the reader has gone. The length
// was announced, so that a reader sees that something is missing.
func (s *site) send(r *http.Request, write func() error) {
	if err := write(); err != nil && r.Context().Err() == nil {
		s.Log.Warn("download broke off", "path", r.URL.Path, "error", err)
	}
}

type part struct {
	file
	body io.ReadCloser
}

const tarBlock = 512 // bytes

// writeArchive writes a directory of plain files that belong to nobody in
// particular.
func writeArchive(w io.Writer, parts []part, modified time.Time) error {
	modified = modified.Truncate(time.Second)
	t := tar.NewWriter(w)
	err := t.WriteHeader(&tar.Header{
		Typeflag: tar.TypeDir, Name: archiveDir + "/", Mode: 0o755, ModTime: modified, Format: tar.FormatUSTAR,
	})
	if err != nil {
		return err
	}
	for _, p := range parts {
		err := t.WriteHeader(&tar.Header{
			Typeflag: tar.TypeReg, Name: archiveDir + "/" + p.Name, Mode: 0o644, Size: p.Size, ModTime: modified, Format: tar.FormatUSTAR,
		})
		if err != nil {
			return err
		}
		if err := copyAll(t, p.body, p.Size); err != nil {
			return err
		}
	}
	return t.Close()
}

func copyAll(w io.Writer, r io.Reader, size int64) error {
	_, err := io.CopyN(w, r, size)
	return err
}
