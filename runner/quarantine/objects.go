package quarantine

import (
	"bufio"
	"context"
	"crypto/sha1" //nolint:gosec // Git's own object format; git adds collision detection at import
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"strconv"
	"strings"
	"time"

	"underwrite/runner/confine"
)

// readTimeout bounds one conversation with git cat-file.
const readTimeout = 10 * time.Minute

// unlimited is for output that our own limits bound as it is read.
const unlimited = 1 << 62

// objects reads a repository through one confined git process. Whatever it
// delivers is hashed and compared with the object id here: git is trusted to
// find objects, not to tell the truth.
type objects struct {
	p      *confine.Process
	r      *bufio.Reader
	format Format
}

func openObjects(ctx context.Context, gitDir string, f Format) (*objects, error) {
	spec := readOnlyGit(gitDir, "-c", "core.bigFileThreshold="+bigFile, "cat-file", "--batch-command")
	spec.MaxStdout, spec.Timeout = unlimited, readTimeout
	p, err := confine.Start(ctx, spec)
	if err != nil {
		return nil, fmt.Errorf("read objects of %s: %w", gitDir, err)
	}
	return &objects{p: p, r: bufio.NewReaderSize(p.Stdout, 128<<10), format: f}, nil
}

func (o *objects) close() { o.p.Kill() }

// ask sends requests while the answers are read. It ends with the process.
func (o *objects) ask(command string, ids []string) {
	go func() {
		w := bufio.NewWriter(o.p.Stdin)
		for _, id := range ids {
			if _, err := w.WriteString(command + " " + id + "\n"); err != nil {
				return // the process is gone: the reader finds out
			}
		}
		w.Flush() //nolint:errcheck // as above
	}()
}

// info reads the answer's first line. A missing object is refused: the
// repository was checked to be complete, so its author is to blame.
func (o *objects) info(id string) (kind string, size int64, err error) {
	line, err := o.r.ReadString('\n')
	if err != nil {
		return "", 0, o.failure(err)
	}
	fields := strings.Fields(line)
	if len(fields) == 2 && fields[0] == id && fields[1] == "missing" {
		return "", 0, refuse("", "object %s is missing", id)
	}
	if len(fields) != 3 || fields[0] != id {
		return "", 0, fmt.Errorf("git cat-file gave an unexpected answer for %s: %q", id, line)
	}
	size, err = strconv.ParseInt(fields[2], 10, 64)
	if err != nil || size < 0 {
		return "", 0, fmt.Errorf("git cat-file gave an unexpected size for %s: %q", id, line)
	}
	return fields[1], size, nil
}

// failure says why the process stopped answering.
func (o *objects) failure(read error) error {
	if err := o.p.Close(); err != nil {
		return gitRefused("objects", err)
	}
	return fmt.Errorf("git cat-file stopped answering: %w", read)
}

// content copies one object of the kind and of at most limit bytes to w.
func (o *objects) content(id, kind string, limit int64, w io.Writer) (int64, error) {
	got, size, err := o.info(id)
	if err != nil {
		return 0, err
	}
	if got != kind {
		return 0, refuse("", "object %s is a %s, not a %s", id, got, kind)
	}
	if size > limit {
		return 0, refuse("", "%s %s has %d bytes, more than %d", kind, id, size, limit)
	}
	h := newHash(o.format)
	fmt.Fprintf(h, "%s %d\x00", kind, size)
	if _, err := io.CopyN(io.MultiWriter(h, w), o.r, size); err != nil {
		if errors.Is(err, io.EOF) {
			err = o.failure(err)
		}
		return 0, err
	}
	if end, err := o.r.ReadByte(); err != nil || end != '\n' {
		return 0, o.failure(errors.New("answer without an end"))
	}
	if hex.EncodeToString(h.Sum(nil)) != id {
		return 0, refuse("", "object %s has content that does not belong to it", id)
	}
	return size, nil
}

// get returns one small object whole.
func (o *objects) get(id, kind string, limit int64) ([]byte, error) {
	o.ask("contents", []string{id})
	var b boundedBuffer
	_, err := o.content(id, kind, limit, &b)
	return b, err
}

type boundedBuffer []byte

func (b *boundedBuffer) Write(p []byte) (int, error) {
	*b = append(*b, p...)
	return len(p), nil
}

func newHash(f Format) hash.Hash {
	if f == SHA256 {
		return sha256.New()
	}
	return sha1.New() //nolint:gosec // see the import
}

// maxCommit bounds a commit object in bytes: messages and signatures are far
// shorter.
const maxCommit = 1 << 20

// rootTree returns the tree of a commit.
func (o *objects) rootTree(commit string) (string, error) {
	if !isObjectID(commit, o.format) {
		return "", refuse("", "%q is no full object id", commit)
	}
	data, err := o.get(commit, "commit", maxCommit)
	if err != nil {
		return "", err
	}
	line, _, ok := strings.Cut(string(data), "\n")
	tree, isTree := strings.CutPrefix(line, "tree ")
	if !ok || !isTree || !isObjectID(tree, o.format) {
		return "", refuse("", "commit %s has no tree", commit)
	}
	return tree, nil
}
