package quarantine

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"underwrite/attest"
)

func encodeItem(e rawEntry) []byte {
	id, _ := hex.DecodeString(e.object)
	return fmt.Appendf(nil, "%o %s\x00%s", e.mode, e.name, id)
}

// TestHostileTrees gives each tree as the head of an otherwise good bundle.
func TestHostileTrees(t *testing.T) {
	tests := []struct {
		name   string
		make   func(r *repo) string
		reason string
		path   string
	}{
		{".git", plain("100644", ".git"), "take for .git", ".git"},
		{".GiT directory", func(r *repo) string {
			return r.tree(item{"40000", ".GiT", r.tree(item{"100644", "config", r.blob("x")})})
		}, "take for .git", ".GiT"},
		{"git~1", plain("100644", "GIT~1"), "take for .git", "GIT~1"},
		{"HFS ignorable", plain("100644", ".g\u200cit"), "take for .git", ".g\u200cit"},
		{"backslash", plain("100644", `x\.git\config`), "take for .git", `x\.git\config`},
		{"dot", plain("100644", "."), ". or ..", "."},
		{"dotdot", plain("120000", ".."), ". or ..", ".."},
		{"slash", plain("100644", "a/b"), "slash", "a/b"},
		{"absolute", plain("100644", "/etc"), "slash", "/etc"},
		{"deep", func(r *repo) string {
			return r.tree(item{"40000", "a", r.tree(item{"40000", "b", r.tree(item{"100644", "..", r.blob("x")})})})
		}, ". or ..", "a/b/.."},
		{"duplicate", func(r *repo) string {
			return r.tree(item{"100644", "a", r.blob("1")}, item{"100644", "a", r.blob("2")})
		}, "twice", "a"},
		{"link, then a path through it", func(r *repo) string {
			return r.tree(item{"120000", "a", r.blob("/etc")}, item{"40000", "a", r.tree(item{"100644", "passwd", r.blob("x")})})
		}, "twice", "a"},
		{"unsorted", func(r *repo) string {
			return r.tree(item{"100644", "b", r.blob("1")}, item{"100644", "a", r.blob("2")})
		}, "unsorted", "a"},
		{"directory sorted as file", func(r *repo) string {
			sub := r.tree(item{"100644", "x", r.blob("1")})
			return r.tree(item{"40000", "a", sub}, item{"100644", "a.b", r.blob("2")})
		}, "unsorted", "a.b"},
		{"gitlink", func(r *repo) string {
			return r.tree(item{"160000", "sub", strings.Repeat("1", 40)})
		}, "submodules", "sub"},
		{"empty directory", func(r *repo) string {
			return r.tree(item{"40000", "a", r.tree()}, item{"100644", "b", r.blob("x")})
		}, "empty directory", "a"},
		{"empty root", func(r *repo) string { return r.tree() }, "empty directory", ""},
		{"set-user-ID", plain("104755", "a"), "unsupported mode", "a"},
		{"device", plain("20000", "a"), "unsupported mode", "a"},
		{".gitmodules link", plain("120000", ".gitmodules"), "symbolic link", ".gitmodules"},
		{"name of 256 bytes", plain("100644", strings.Repeat("n", 256)), "255 bytes", strings.Repeat("n", 256)},
		{"link without target", func(r *repo) string { return r.tree(item{"120000", "l", r.blob("")}) }, "without a target", "l"},
		{"NUL in a target", func(r *repo) string { return r.tree(item{"120000", "l", r.blob("a\x00b")}) }, "NUL", "l"},
		{"long target", func(r *repo) string {
			return r.tree(item{"120000", "l", r.blob(strings.Repeat("t", maxTargetBytes+1))})
		}, "4095", "l"},
		{"file is a tree", func(r *repo) string {
			return r.tree(item{"100644", "a", r.tree(item{"100644", "x", r.blob("1")})})
		}, "", ""},
		{"directory is a file", func(r *repo) string { return r.tree(item{"40000", "a", r.blob("x")}) }, "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRepo(t, SHA1)
			_, err := r.importHead(r.commit(tt.make(r)), testLimits)
			refused := mustRefuse(t, err)
			if !strings.Contains(refused.Reason, tt.reason) || tt.reason != "" && refused.Path != tt.path {
				t.Errorf("refused with %q at %q, want %q at %q", refused.Reason, refused.Path, tt.reason, tt.path)
			}
		})
	}
}

func plain(mode, name string) func(r *repo) string {
	return func(r *repo) string { return r.tree(item{mode, name, r.blob("content")}) }
}

func TestLimits(t *testing.T) {
	chain := func(depth int) func(r *repo) string {
		return func(r *repo) string {
			id, mode := r.blob("x"), "100644"
			for range depth {
				id, mode = r.tree(item{mode, "d", id}), "40000"
			}
			return id
		}
	}
	wide := func(n int) func(r *repo) string {
		return func(r *repo) string {
			items, id := make([]item, n), r.blob("x")
			for i := range items {
				items[i] = item{"100644", fmt.Sprintf("f%05d", i), id}
			}
			return r.tree(items...)
		}
	}
	with := func(change func(l *Limits)) Limits { l := testLimits; change(&l); return l }
	tests := []struct {
		name   string
		make   func(r *repo) string
		limits Limits
		reason string // "": accepted
	}{
		{"256 components", chain(256), testLimits, ""},
		{"257 components", chain(257), testLimits, "components"},
		{"20,000 entries", wide(20000), testLimits, ""},
		{"20,001 entries", wide(20001), testLimits, "entries"},
		{"10 entries", wide(10), with(func(l *Limits) { l.Entries = 10 }), ""},
		{"11 entries", wide(11), with(func(l *Limits) { l.Entries = 10 }), "entries"},
		{"path", chain(3), with(func(l *Limits) { l.PathBytes = 4 }), "path of more than"},
		{"all paths", wide(10), with(func(l *Limits) { l.TotalPathBytes = 59 }), "bytes of paths"},
		{"blob", plain("100644", "a"), with(func(l *Limits) { l.BlobBytes = 6 }), "file of 7 bytes"},
		{"blob fits", plain("100644", "a"), with(func(l *Limits) { l.BlobBytes = 7 }), ""},
		{"content", wide(10), with(func(l *Limits) { l.WorkspaceBytes = 9 }), "bytes of content"},
		{"content fits", wide(10), with(func(l *Limits) { l.WorkspaceBytes = 10 }), ""},
		{"bundle", wide(10), with(func(l *Limits) { l.BundleBytes = 100 }), "bundle of more"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRepo(t, SHA1)
			_, err := r.importHead(r.commit(tt.make(r)), tt.limits)
			if tt.reason == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			if refused := mustRefuse(t, err); !strings.Contains(refused.Reason, tt.reason) {
				t.Errorf("refused with %q, want %q", refused.Reason, tt.reason)
			}
		})
	}
}

func TestLimitsMustBeGiven(t *testing.T) {
	s := &Source{GitDir: t.TempDir()}
	if _, err := s.Walk(t.Context(), idA, Limits{}); !errors.Is(err, errNoLimit) {
		t.Errorf("Walk: %v", err)
	}
	if _, err := ImportSource(t.Context(), "/nonexistent/x", "/nonexistent/y", attest.Target{}, Limits{}); !errors.Is(err, errNoLimit) {
		t.Errorf("ImportSource: %v", err)
	}
}

// TestGitBomb: ten levels of ten times the same tree stand for ten thousand
// million files in a dozen objects.
func TestGitBomb(t *testing.T) {
	r := newRepo(t, SHA1)
	id, mode := r.blob("boom"), "100644"
	for range 10 {
		items := make([]item, 10)
		for i := range items {
			items[i] = item{mode, fmt.Sprintf("d%d", i), id}
		}
		id, mode = r.tree(items...), "40000"
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	start := time.Now()
	_, err := r.importHead(r.commit(id), testLimits)
	runtime.ReadMemStats(&after)
	if refused := mustRefuse(t, err); !strings.Contains(refused.Reason, "entries") {
		t.Errorf("refused with %q", refused.Reason)
	}
	t.Logf("refused after %v", time.Since(start))
	if allocated := after.TotalAlloc - before.TotalAlloc; allocated > 256<<20 {
		t.Errorf("%d bytes were allocated", allocated)
	}
}

// TestPackBomb: a pack of 200 kB with 200 MB of zeros in it.
func TestPackBomb(t *testing.T) {
	r := newRepo(t, SHA1)
	path := filepath.Join(t.TempDir(), "zeros")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Truncate(200 << 20); err != nil {
		t.Fatal(err)
	}
	f.Close()
	id := strings.TrimSpace(string(r.git(nil, "hash-object", "-w", "--no-filters", path)))
	_, err = r.importHead(r.commit(r.tree(item{"100644", "zeros", id})), testLimits)
	if refused := mustRefuse(t, err); refused.Path != "zeros" {
		t.Errorf("refused: %v", err)
	}
}

// TestOldHistory: what strict fsck refuses deep in honest histories.
func TestOldHistory(t *testing.T) {
	r := newRepo(t, SHA1)
	file := r.blob("x")
	padded := r.tree(item{"100644", "a", file}, item{"040000", "d", r.tree(item{"0100644", "f", file})})
	first := r.commitBy("A <a@example.com> 1200000000 +051800", padded)
	second := r.commitBy("No Mail <> 1200000000 -0000", r.tree(item{"100664", "a", file}), first)
	third := r.commitBy("A <a@b <c@example.com> 12 +0000", r.tree(item{"160000", "sub", idA}), second)
	head := r.commit(r.tree(item{"100644", "a", file}), third)
	if _, err := r.importHead(head, testLimits); err != nil {
		t.Errorf("bad objects in history: %v", err)
	}
	if _, err := r.importHead(first, testLimits); err != nil {
		t.Errorf("zero-padded modes in the head: %v", err)
	}
	if _, err := r.importHead(second, testLimits); err != nil {
		t.Errorf("group-writable mode in the head: %v", err)
	}
}

// TestBytesAreBlobs: no attribute changes what is written.
func TestBytesAreBlobs(t *testing.T) {
	r := newRepo(t, SHA1)
	contents := map[string]string{
		".gitattributes": "* text=auto eol=crlf ident filter=lfs diff=lfs working-tree-encoding=UTF-16\nhidden export-ignore\nsubst export-subst\n",
		"crlf":           "a\r\nb\r\n", "lf": "a\nb\n", "hidden": "here", "ident": "$Id$\n", "subst": "$Format:%H$\n",
		"lfs": "version https://git-lfs.github.com/spec/v1\noid sha256:" + strings.Repeat("0", 64) + "\nsize 5\n",
		"nul": "a\x00b", "empty": "", "\xff\xfe": "not UTF-8", "new\nline": "name", "cr\r": "name", "-rf": "dash", "Case": "1", "case": "2",
		`back\slash`: "x", "com1": "x", "a:b": "x", " ": "space",
	}
	var items []item
	for _, name := range slices.Sorted(maps.Keys(contents)) {
		items = append(items, item{"100644", name, r.blob(contents[name])})
	}
	items = append(items, item{"40000", "\xff\xff", r.tree(item{"100755", "run", r.blob("#!/bin/sh\n")}, item{"120000", "up", r.blob("../../../../etc/passwd")})})
	head := r.commit(r.tree(items...))

	path, target := r.bundle(head, head)
	s, err := ImportSource(t.Context(), filepath.Join(t.TempDir(), "s.git"), path, target, testLimits)
	if err != nil {
		t.Fatal(err)
	}
	tree, err := s.Walk(t.Context(), head, testLimits)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := s.Materialize(t.Context(), tree, dir, -1, -1); err != nil {
		t.Fatal(err)
	}
	for name, want := range contents {
		got, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || string(got) != want {
			t.Errorf("%q = %q, %v, want %q", name, got, err, want)
		}
	}
	mustHaveMode(t, filepath.Join(dir, "lf"), 0o644)
	mustHaveMode(t, filepath.Join(dir, "\xff\xff"), 0o755|os.ModeDir)
	mustHaveMode(t, filepath.Join(dir, "\xff\xff", "run"), 0o755)
	if link, err := os.Readlink(filepath.Join(dir, "\xff\xff", "up")); err != nil || link != "../../../../etc/passwd" {
		t.Errorf("link = %q, %v", link, err)
	}
	if err := s.Materialize(t.Context(), tree, dir, -1, -1); err == nil {
		t.Error("a directory that is not empty was written to")
	}
	link := filepath.Join(t.TempDir(), "link")
	os.Symlink(t.TempDir(), link)
	if err := s.Materialize(t.Context(), tree, link, -1, -1); err == nil {
		t.Error("a symbolic link was written through")
	}
}

func mustHaveMode(t *testing.T, path string, want os.FileMode) {
	t.Helper()
	st, err := os.Lstat(path)
	if err != nil || st.Mode() != want {
		t.Errorf("%s: mode %v, %v, want %v", path, st.Mode(), err, want)
	}
}

func TestMaterializeGivesAway(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can give files away")
	}
	r := newRepo(t, SHA1)
	head := r.commit(r.tree(item{"40000", "d", r.tree(item{"100644", "f", r.blob("x")}, item{"120000", "l", r.blob("f")})}))
	s := &Source{GitDir: r.dir}
	tree, err := s.Walk(t.Context(), head, testLimits)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := s.Materialize(t.Context(), tree, dir, 123456, 654321); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"d", "d/f", "d/l"} {
		if uid, gid := owner(t, filepath.Join(dir, name)); uid != 123456 || gid != 654321 {
			t.Errorf("%s belongs to %d:%d", name, uid, gid)
		}
	}
}

// TestBadBundles breaks one good bundle in many ways. Digest and size of the
// target always fit, so that only the content can be refused.
func TestBadBundles(t *testing.T) {
	r := newRepo(t, SHA1)
	base := r.commit(r.tree(item{"100644", "a", r.blob("one")}))
	head := r.commit(r.tree(item{"100644", "a", r.blob("two")}), base)
	header := func(refs ...Ref) []byte { h := Header{Version: 2, Format: SHA1, Refs: refs}; return h.Encode() }
	good := header(Ref{base, BaseRef}, Ref{head, HeadRef})
	pack := r.pack()
	attempt := func(t *testing.T, data []byte) error {
		path, target := r.store(data, base, head)
		gitDir := filepath.Join(t.TempDir(), "s.git")
		s, err := ImportSource(t.Context(), gitDir, path, target, testLimits)
		if err != nil {
			if _, statErr := os.Lstat(gitDir); statErr == nil {
				t.Error("a repository was left behind")
			}
			return err
		}
		_, err = s.Walk(t.Context(), s.Head, testLimits)
		return err
	}
	if err := attempt(t, append(bytes.Clone(good), pack...)); err != nil {
		t.Fatalf("the good bundle: %v", err)
	}
	flip := func(at int) []byte {
		p := bytes.Clone(pack)
		p[at] ^= 1
		return append(bytes.Clone(good), p...)
	}
	replace := r.blob("replaced")
	huge := bytes.Clone(pack)
	copy(huge[8:], "\xff\xff\xff\xff")
	for name, data := range map[string][]byte{
		"empty":                 {},
		"header only":           good,
		"truncated":             append(bytes.Clone(good), pack[:len(pack)-1]...),
		"half":                  append(bytes.Clone(good), pack[:len(pack)/2]...),
		"flipped header":        flip(5),
		"flipped middle":        flip(len(pack) / 2),
		"flipped checksum":      flip(len(pack) - 1),
		"trailing byte":         append(append(bytes.Clone(good), pack...), 0),
		"trailing megabyte":     append(append(bytes.Clone(good), pack...), make([]byte, 1<<20)...),
		"two packs":             append(append(bytes.Clone(good), pack...), pack...),
		"four thousand million": append(bytes.Clone(good), huge...),
		"extra ref":             append(header(Ref{base, BaseRef}, Ref{head, HeadRef}, Ref{head, "refs/heads/main"}), pack...),
		"replace ref":           append(header(Ref{base, BaseRef}, Ref{head, HeadRef}, Ref{replace, "refs/replace/" + head}), pack...),
		"prerequisite":          append([]byte("# v2 git bundle\n-"+base+" x\n"+head+" "+HeadRef+"\n\n"), pack...),
		"other commits":         append(header(Ref{head, BaseRef}, Ref{base, HeadRef}), pack...),
		"sha256":                append([]byte("# v3 git bundle\n@object-format=sha256\n\n"), pack...),
	} {
		t.Run(name, func(t *testing.T) { mustRefuse(t, attempt(t, data)) })
	}
}

// TestThinPack: a pack that leans on objects of elsewhere.
func TestThinPack(t *testing.T) {
	r := newRepo(t, SHA1)
	text := strings.Repeat("some text that makes a delta worth it\n", 100)
	base := r.commit(r.tree(item{"100644", "a", r.blob(text)}))
	head := r.commit(r.tree(item{"100644", "a", r.blob(text + "more")}), base)
	thin := r.git([]byte(head+"\n^"+base+"\n"), "pack-objects", "--thin", "--revs", "--stdout", "--quiet")
	h := Header{Version: 2, Format: SHA1, Refs: []Ref{{head, BaseRef}, {head, HeadRef}}}
	path, target := r.store(append(h.Encode(), thin...), head, head)
	_, err := ImportSource(t.Context(), filepath.Join(t.TempDir(), "s.git"), path, target, testLimits)
	mustRefuse(t, err)
}

func TestBundleFile(t *testing.T) {
	r := newRepo(t, SHA1)
	head := r.commit(r.tree(item{"100644", "a", r.blob("one")}))
	path, target := r.bundle(head, head)
	link := filepath.Join(t.TempDir(), "link")
	os.Symlink(path, link)
	dir := t.TempDir()
	if _, err := ImportSource(t.Context(), filepath.Join(dir, "s.git"), link, target, testLimits); err == nil {
		t.Error("a symbolic link was followed")
	}
	if _, err := ImportSource(t.Context(), filepath.Join(dir, "s.git"), t.TempDir(), target, testLimits); err == nil {
		t.Error("a directory was imported")
	}
	mustBeEmpty(t, dir)
	if _, err := ImportSource(t.Context(), dir, path, target, testLimits); err == nil {
		t.Error("an existing directory was imported into")
	}
	wrong := target
	wrong.ObjectBundleSHA256 = strings.Repeat("0", 64)
	_, err := ImportSource(t.Context(), filepath.Join(dir, "s.git"), path, wrong, testLimits)
	mustRefuse(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var refused *RefusedError
	if _, err := ImportSource(ctx, filepath.Join(dir, "s.git"), path, target, testLimits); err == nil || errors.As(err, &refused) {
		t.Errorf("cancelled: %v, want no refusal", err)
	}
}

// TestCopyIsPrivate: the bundle is changed after it was hashed.
func TestCopyIsPrivate(t *testing.T) {
	r := newRepo(t, SHA1)
	head := r.commit(r.tree(item{"100644", "a", r.blob("one")}))
	path, _ := r.bundle(head, head)
	dir := t.TempDir()
	b, err := openBundle(path, dir, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer b.file.Close()
	mustBeEmpty(t, dir)
	write(t, path, []byte("changed"))
	if o, err := b.importInto(t.Context(), filepath.Join(dir, "s.git"), map[string]string{HeadRef: head}, false); err != nil {
		t.Errorf("import of the copy: %v", err)
	} else {
		o.close()
	}
}
