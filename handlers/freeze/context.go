package freeze

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"underwrite/attest"
	"underwrite/runner/confine"
)

// maxImportDepth is the longest chain of imports below a file that is in the
// trusted context by its own name.
const maxImportDepth = 4

// Bounds of what git says about a tree, in bytes. A listing is not kept, so it
// may be long: a million entries fit.
const (
	maxTreeListing = 1 << 30
	maxTreeRecord  = 64 << 10
	maxBlobHeader  = 128 // of one object in the output of cat-file --batch
)

// contextFile is one file of trusted-context.json.
type contextFile struct {
	blob, content, mode, path string
	searched                  bool
	imports                   []string // paths, once searched
}

// treeEntry is one record of `git ls-tree -z`.
type treeEntry struct{ mode, kind, object, path string }

// instructionNames are read at any depth and may import.
var instructionNames = []string{"AGENTS.md", "AGENTS.override.md", "CLAUDE.md", "CLAUDE.local.md"}

func isInstruction(p string) bool {
	return slices.Contains(instructionNames, path.Base(p)) || (strings.HasPrefix(p, rulesDir+"/") && isMarkdown(p))
}

// isBackground tells of files that belong to the context and import nothing.
func isBackground(p string) bool {
	return p == "CONTRIBUTING.md" ||
		((strings.HasPrefix(p, "docs/adr/") || strings.HasPrefix(p, "docs/adrs/")) && isMarkdown(p))
}

const rulesDir = ".claude/rules"

func isMarkdown(p string) bool { return len(p) > 3 && strings.EqualFold(p[len(p)-3:], ".md") }

// mustBePlain tells of links and submodules that stand where instructions are
// looked for: following them is no option, and overlooking them would drop
// instructions without a word.
func mustBePlain(p string) bool {
	return slices.Contains(instructionNames, path.Base(p)) || isBackground(p) ||
		p == ".claude" || p == rulesDir || strings.HasPrefix(p, rulesDir+"/")
}

// contextReader collects the trusted context of the base commit.
type contextReader struct {
	repo   *scratch
	limits Limits
	files  map[string]*contextFile
	bytes  int64 // of all contents
}

// trustedContext returns the files in the order of their paths. A
// *RefusedError says what is wrong with the base's instructions.
func trustedContext(ctx context.Context, repo *scratch, l Limits) ([]*contextFile, error) {
	c := &contextReader{repo: repo, limits: l, files: map[string]*contextFile{}}
	roots, err := c.roots(ctx)
	if err != nil {
		return nil, err
	}
	if err := c.load(ctx, roots); err != nil {
		return nil, err
	}
	if err := c.checkChains(); err != nil {
		return nil, err
	}
	files := make([]*contextFile, 0, len(c.files))
	for _, f := range c.files {
		files = append(files, f)
	}
	slices.SortFunc(files, func(a, b *contextFile) int { return strings.Compare(a.path, b.path) })
	return files, nil
}

// roots finds the files that belong to the context by their names.
func (c *contextReader) roots(ctx context.Context) ([]treeEntry, error) {
	var found []treeEntry
	err := c.list(ctx, func(e treeEntry) error {
		if (e.mode == "120000" || e.mode == "160000") && mustBePlain(e.path) {
			return &RefusedError{Reason: "trusted context of the base: not a regular file", Path: e.path}
		}
		if isInstruction(e.path) || isBackground(e.path) {
			found = append(found, e)
		}
		if len(found) > c.limits.ContextFiles {
			return c.tooManyFiles()
		}
		return nil
	}, "-r", baseRef)
	return found, err
}

func (c *contextReader) tooManyFiles() error {
	return &RefusedError{Reason: fmt.Sprintf("trusted context of the base: more than %d files", c.limits.ContextFiles)}
}

// load reads the entries, then what they import, level by level: each level
// costs two processes whatever its size.
func (c *contextReader) load(ctx context.Context, level []treeEntry) error {
	for depth := 0; len(level) > 0; depth++ {
		added, err := c.read(ctx, level, depth > 0)
		if err != nil {
			return err
		}
		wanted, err := c.wanted(added, depth)
		if err != nil {
			return err
		}
		if level, err = c.lookUp(ctx, wanted); err != nil {
			return err
		}
	}
	return nil
}

// wanted returns the imported paths that are not loaded yet, each with a file
// that imports it. A file that belongs to the context anyway and was not
// searched for imports is searched once something imports it.
func (c *contextReader) wanted(added []*contextFile, depth int) (map[string]string, error) {
	wanted := map[string]string{}
	for i := 0; i < len(added); i++ {
		for _, p := range added[i].imports {
			known := c.files[p]
			if known == nil {
				wanted[p] = added[i].path
			} else if !known.searched {
				if err := known.search(); err != nil {
					return nil, err
				}
				added = append(added, known)
			}
		}
	}
	if len(c.files)+len(wanted) > c.limits.ContextFiles {
		return nil, c.tooManyFiles()
	}
	if len(wanted) > 0 && depth >= maxImportDepth {
		return nil, tooDeep(wanted[first(wanted)])
	}
	return wanted, nil
}

// first returns the least key, so that the same tree gives the same message.
func first[V any](m map[string]V) string {
	return slices.Min(slices.Collect(maps.Keys(m)))
}

func tooDeep(importer string) error {
	return &RefusedError{
		Reason: fmt.Sprintf("trusted context of the base: imports are nested deeper than %d", maxImportDepth),
		Path:   importer,
	}
}

// lookUp finds imported paths in the base tree.
func (c *contextReader) lookUp(ctx context.Context, wanted map[string]string) ([]treeEntry, error) {
	if len(wanted) == 0 {
		return nil, nil
	}
	args := []string{baseRef, "--"}
	for p := range wanted {
		args = append(args, p)
	}
	var found []treeEntry
	if err := c.list(ctx, func(e treeEntry) error {
		if _, ok := wanted[e.path]; ok {
			found = append(found, e)
			delete(wanted, e.path)
		}
		return nil
	}, args...); err != nil {
		return nil, err
	}
	if len(wanted) > 0 {
		p := first(wanted)
		return nil, &RefusedError{
			Reason: fmt.Sprintf("trusted context of the base: @%s is no file (put it into backticks if it is no import), imported by", p),
			Path:   wanted[p],
		}
	}
	return found, nil
}

// read loads the blobs of the entries. Imported files are searched for imports
// whatever their names.
func (c *contextReader) read(ctx context.Context, entries []treeEntry, imported bool) ([]*contextFile, error) {
	var names strings.Builder
	for _, e := range entries {
		if e.kind != "blob" || (e.mode != "100644" && e.mode != "100755") {
			return nil, &RefusedError{Reason: "trusted context of the base: not a regular file", Path: e.path}
		}
		if !utf8.ValidString(e.path) {
			return nil, &RefusedError{Reason: "trusted context of the base: the path is not UTF-8", Path: e.path}
		}
		names.WriteString(e.object + "\n")
	}
	blobs, err := c.blobs(ctx, names.String(), len(entries))
	if err != nil {
		return nil, err
	}
	files := make([]*contextFile, len(entries))
	for i, e := range entries {
		f := &contextFile{blob: e.object, content: blobs[i], mode: e.mode, path: e.path}
		if !utf8.ValidString(f.content) {
			return nil, &RefusedError{Reason: "trusted context of the base: the file is not UTF-8", Path: e.path}
		}
		if c.files[e.path] != nil {
			return nil, &RefusedError{Reason: "the base tree names a path twice", Path: e.path}
		}
		if imported || isInstruction(e.path) {
			if err := f.search(); err != nil {
				return nil, err
			}
		}
		files[i] = f
		c.files[e.path] = f
	}
	return files, nil
}

// search finds the imports of the file.
func (f *contextFile) search() error {
	f.searched = true
	for _, ref := range importRefs(f.content) {
		p, ok := resolveImport(f.path, ref)
		if !ok {
			return &RefusedError{
				Reason: fmt.Sprintf("trusted context of the base: @%s leaves the repository, imported by", ref), Path: f.path,
			}
		}
		f.imports = append(f.imports, p)
	}
	return nil
}

// blobs returns the contents of the named objects, in their order.
func (c *contextReader) blobs(ctx context.Context, names string, count int) ([]string, error) {
	if count == 0 {
		return nil, nil
	}
	tooLarge := &RefusedError{Reason: fmt.Sprintf("trusted context of the base: more than %d bytes", c.limits.ContextBytes)}
	var out bytes.Buffer
	maximum := c.limits.ContextBytes - c.bytes + int64(count)*maxBlobHeader
	err := c.repo.git(ctx, &out, maximum, strings.NewReader(names), "cat-file", "--batch")
	if errors.Is(err, confine.ErrOutput) {
		return nil, tooLarge
	} else if err != nil {
		return nil, err
	}
	blobs := make([]string, count)
	for i := range blobs {
		if blobs[i], err = nextBlob(&out); err != nil {
			return nil, err
		}
		c.bytes += int64(len(blobs[i]))
	}
	if c.bytes > c.limits.ContextBytes {
		return nil, tooLarge
	}
	return blobs, nil
}

// nextBlob reads one object of `git cat-file --batch`.
func nextBlob(r *bytes.Buffer) (string, error) {
	header, err := r.ReadString('\n')
	fields := strings.Fields(header)
	if err != nil || len(fields) != 3 || fields[1] != "blob" {
		return "", fmt.Errorf("git cat-file: unexpected answer %q", header)
	}
	size, err := strconv.Atoi(fields[2])
	if err != nil || size < 0 || size >= r.Len() {
		return "", fmt.Errorf("git cat-file: unexpected answer %q", header)
	}
	content := string(r.Next(size))
	if end, err := r.ReadByte(); err != nil || end != '\n' {
		return "", errors.New("git cat-file: object does not end where it says")
	}
	return content, nil
}

// list gives each record of a tree listing to visit.
func (c *contextReader) list(ctx context.Context, visit func(treeEntry) error, args ...string) error {
	s := &recordSplitter{visit: func(record string) error {
		head, p, ok := strings.Cut(record, "\t")
		fields := strings.Fields(head)
		if !ok || len(fields) != 3 {
			return errors.New("git ls-tree: unexpected answer")
		}
		return visit(treeEntry{mode: fields[0], kind: fields[1], object: fields[2], path: p})
	}}
	err := c.repo.git(ctx, s, maxTreeListing, nil, append([]string{"ls-tree", "-z", "--full-tree"}, args...)...)
	if s.err != nil { // the writer's own error is the cause of git's
		return s.err
	}
	return err
}

// recordSplitter passes NUL-terminated records on.
type recordSplitter struct {
	visit func(string) error
	rest  []byte
	err   error
}

func (s *recordSplitter) Write(p []byte) (int, error) {
	written := len(p)
	for s.err == nil {
		i := bytes.IndexByte(p, 0)
		if i < 0 {
			s.rest = append(s.rest, p...)
			break
		}
		record := string(append(s.rest, p[:i]...))
		s.rest, p = s.rest[:0], p[i+1:]
		s.err = s.visit(record)
	}
	if s.err == nil && len(s.rest) > maxTreeRecord {
		s.err = &RefusedError{Reason: "a path is too long"}
	}
	if s.err != nil {
		return 0, s.err
	}
	return written, nil
}

// checkChains refuses cycles of imports and chains that are too long. It
// depends on the files alone, never on the order in which they were read.
func (c *contextReader) checkChains() error {
	heights := map[string]int{}
	var height func(p string, chain []string) (int, error)
	height = func(p string, chain []string) (int, error) {
		if slices.Contains(chain, p) {
			return 0, &RefusedError{Reason: "trusted context of the base: imports run in a circle", Path: p}
		}
		if h, ok := heights[p]; ok {
			return h, nil
		}
		h := 0
		for _, next := range c.files[p].imports {
			below, err := height(next, append(chain, p))
			if err != nil {
				return 0, err
			}
			h = max(h, below+1)
		}
		heights[p] = h
		return h, nil
	}
	for _, p := range slices.Sorted(maps.Keys(c.files)) {
		h, err := height(p, nil)
		if err != nil {
			return err
		}
		if h > maxImportDepth && (isInstruction(p) || isBackground(p)) {
			return tooDeep(p)
		}
	}
	return nil
}

// encodeContext returns the content of trusted-context.json: canonical JSON
// like the protocol's own documents, and a newline.
func encodeContext(base string, files []*contextFile) ([]byte, error) {
	list := make([]any, len(files))
	for i, f := range files {
		list[i] = map[string]any{"blob_sha": f.blob, "content": f.content, "mode": f.mode, "path": f.path}
	}
	b, err := attest.CanonicalJSON(map[string]any{"base_sha": base, "files": list, "version": 1})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", contextName, err)
	}
	return append(b, '\n'), nil
}
