package freeze

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// contextOf collects the trusted context of a tree.
func contextOf(t *testing.T, r repository, tree string, l Limits) ([]*contextFile, error) {
	t.Helper()
	c := r.commit(tree)
	objects, err := realPath("objects", filepath.Join(r.dir, "objects"))
	if err != nil {
		t.Fatal(err)
	}
	s, err := newScratch(filepath.Join(t.TempDir(), "scratch.git"), []string{objects}, map[string]string{baseRef: c, headRef: c})
	if err != nil {
		t.Fatal(err)
	}
	return trustedContext(t.Context(), s, l.orDefaults())
}

func TestContextFiles(t *testing.T) {
	tests := []struct {
		name   string
		files  files
		others map[string]entry
		want   []string
	}{
		{"nothing", files{"README.md": "@AGENTS.md", "src/x.go": "x"}, nil, nil},
		{"by name, at any depth", files{
			"AGENTS.md": "", "AGENTS.override.md": "", "CLAUDE.md": "", "CLAUDE.local.md": "", "a/b/AGENTS.md": "", "a/CLAUDE.local.md": "",
			"agents.md": "", "AGENTS.md.txt": "", "xAGENTS.md": "", "AGENTS.md.d/x": "",
		}, nil, []string{"AGENTS.md", "AGENTS.override.md", "CLAUDE.local.md", "CLAUDE.md", "a/CLAUDE.local.md", "a/b/AGENTS.md"}},
		{"rules", files{
			".claude/rules/a.md": "", ".claude/rules/sub/b.MD": "", ".claude/rules/c.txt": "", ".claude/settings.json": "",
			"sub/.claude/rules/d.md": "", ".claude/rules.md": "",
		}, nil, []string{".claude/rules/a.md", ".claude/rules/sub/b.MD"}},
		{"contributing and decisions", files{
			"CONTRIBUTING.md": "thanks to @octocat", "sub/CONTRIBUTING.md": "", "docs/CONTRIBUTING.md": "",
			"docs/adr/1.md": "@nobody", "docs/adr/sub/2.md": "", "docs/adrs/3.Md": "", "docs/adr/4.txt": "", "docs/adr.md": "", "x/docs/adr/5.md": "",
		}, nil, []string{"CONTRIBUTING.md", "docs/adr/1.md", "docs/adr/sub/2.md", "docs/adrs/3.Md"}},
		{"imports", files{
			"AGENTS.md": "@docs/a.md and @docs/b.txt", "docs/a.md": "@../c.md", "docs/b.txt": "@./a.md", "c.md": "", "d.md": "",
		}, nil, []string{"AGENTS.md", "c.md", "docs/a.md", "docs/b.txt"}},
		{"chain of four", files{"AGENTS.md": "@1", "1": "@2", "2": "@3", "3": "@4", "4": "end"}, nil, []string{"1", "2", "3", "4", "AGENTS.md"}},
		{"imported decision is searched", files{"AGENTS.md": "@docs/adr/1.md", "docs/adr/1.md": "@../../x", "x": ""}, nil, []string{"AGENTS.md", "docs/adr/1.md", "x"}},
		{"imported from two files", files{"AGENTS.md": "@x", "sub/CLAUDE.md": "@../x", "x": "@y", "y": ""}, nil, []string{"AGENTS.md", "sub/CLAUDE.md", "x", "y"}},
		{"executable", nil, map[string]entry{"AGENTS.md": {"100755", "x"}}, []string{"AGENTS.md"}},
		{"link elsewhere", files{"AGENTS.md": "x"}, map[string]entry{"docs/x.md": {"120000", "AGENTS.md"}}, []string{"AGENTS.md"}},
		{"odd names", files{"a b/AGENTS.md": "", "new\nline/AGENTS.md": "", "größe/AGENTS.md": "", "-x/AGENTS.md": ""}, nil,
			[]string{"-x/AGENTS.md", "a b/AGENTS.md", "größe/AGENTS.md", "new\nline/AGENTS.md"}},
	}
	r := newRepository(t, filepath.Join(t.TempDir(), "r.git"))
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := contextOf(t, r, r.tree(tt.files, tt.others), Limits{})
			if err != nil {
				t.Fatal(err)
			}
			var paths []string
			for _, f := range got {
				paths = append(paths, f.path)
				want := entry{"100644", tt.files[f.path]}
				if o, ok := tt.others[f.path]; ok {
					want = o
				}
				if f.mode != want.mode || f.content != want.content {
					t.Errorf("%q has mode %s and content %q", f.path, f.mode, f.content)
				}
			}
			if !slices.Equal(paths, tt.want) {
				t.Errorf("files %q, want %q", paths, tt.want)
			}
		})
	}
}

func TestContextRefuses(t *testing.T) {
	link := func(p string) map[string]entry { return map[string]entry{p: {"120000", "README.md"}} }
	module := func(p string) map[string]entry {
		return map[string]entry{p: {"160000", strings.Repeat("1", 40)}}
	}
	tests := []struct {
		name         string
		files        files
		others       map[string]entry
		limits       Limits
		reason, path string
	}{
		{"linked instructions", files{"README.md": ""}, link("AGENTS.md"), Limits{}, "not a regular file", "AGENTS.md"},
		{"linked instructions below", files{"README.md": ""}, link("sub/CLAUDE.md"), Limits{}, "not a regular file", "sub/CLAUDE.md"},
		{"linked rules", files{"README.md": ""}, link(".claude/rules"), Limits{}, "not a regular file", ".claude/rules"},
		{"linked settings directory", files{"README.md": ""}, link(".claude"), Limits{}, "not a regular file", ".claude"},
		{"linked rule without an ending", files{"README.md": ""}, link(".claude/rules/more"), Limits{}, "not a regular file", ".claude/rules/more"},
		{"linked decision", files{"README.md": ""}, link("docs/adr/1.md"), Limits{}, "not a regular file", "docs/adr/1.md"},
		{"linked contributing", files{"README.md": ""}, link("CONTRIBUTING.md"), Limits{}, "not a regular file", "CONTRIBUTING.md"},
		{"submodule as instructions", nil, module("AGENTS.md"), Limits{}, "not a regular file", "AGENTS.md"},
		{"submodule as settings directory", nil, module(".claude"), Limits{}, "not a regular file", ".claude"},
		{"import of a link", files{"AGENTS.md": "@x", "README.md": ""}, link("x"), Limits{}, "not a regular file", "x"},
		{"import of a submodule", files{"AGENTS.md": "@x"}, module("x"), Limits{}, "not a regular file", "x"},
		{"import of a directory", files{"AGENTS.md": "@x", "x/y": ""}, nil, Limits{}, "not a regular file", "x"},
		{"import through a link", files{"AGENTS.md": "@x/y", "d/y": ""}, map[string]entry{"x": {"120000", "d"}}, Limits{}, "@x/y is no file", "AGENTS.md"},
		{"import missing", files{"AGENTS.md": "@gone.md"}, nil, Limits{}, "@gone.md is no file", "AGENTS.md"},
		{"import of an import missing", files{"AGENTS.md": "@a.md", "a.md": "@gone.md"}, nil, Limits{}, "@gone.md is no file", "a.md"},
		{"import out of the repository", files{"AGENTS.md": "@../x"}, nil, Limits{}, "@../x leaves the repository", "AGENTS.md"},
		{"import from the machine", files{"AGENTS.md": "@/etc/passwd"}, nil, Limits{}, "@/etc/passwd leaves", "AGENTS.md"},
		{"import from the home", files{"AGENTS.md": "@~/x.md"}, nil, Limits{}, "@~/x.md leaves", "AGENTS.md"},
		{"import of itself", files{"AGENTS.md": "@AGENTS.md"}, nil, Limits{}, "in a circle", "AGENTS.md"},
		{"circle", files{"AGENTS.md": "@a", "a": "@b", "b": "@c", "c": "@a"}, nil, Limits{}, "in a circle", "a"},
		{"circle of instructions", files{"AGENTS.md": "@sub/CLAUDE.md", "sub/CLAUDE.md": "@../AGENTS.md"}, nil, Limits{}, "in a circle", "AGENTS.md"},
		{"chain of five", files{"AGENTS.md": "@1", "1": "@2", "2": "@3", "3": "@4", "4": "@5", "5": ""}, nil, Limits{}, "deeper than 4", "4"},
		{"chain of five that is also shorter", files{"AGENTS.md": "@1", "1": "@2", "2": "@3", "3": "@4", "4": "@CLAUDE.md", "CLAUDE.md": ""}, nil, Limits{}, "deeper than 4", "AGENTS.md"},
		{"not UTF-8", files{"AGENTS.md": "\xff"}, nil, Limits{}, "the file is not UTF-8", "AGENTS.md"},
		{"import not UTF-8", files{"AGENTS.md": "@x", "x": "a\xc3"}, nil, Limits{}, "the file is not UTF-8", "x"},
		{"surrogate", files{"AGENTS.md": "\xed\xa0\x80"}, nil, Limits{}, "the file is not UTF-8", "AGENTS.md"},
		{"path not UTF-8", files{"\xff/AGENTS.md": ""}, nil, Limits{}, "the path is not UTF-8", "\xff/AGENTS.md"},
		{"too many files", files{"a/AGENTS.md": "", "b/AGENTS.md": "", "c/AGENTS.md": ""}, nil, Limits{ContextFiles: 2}, "more than 2 files", ""},
		{"too many with imports", files{"AGENTS.md": "@x @y", "x": "", "y": ""}, nil, Limits{ContextFiles: 2}, "more than 2 files", ""},
		{"too many bytes", files{"AGENTS.md": strings.Repeat("x", 2_000_001)}, nil, Limits{}, "more than 2000000 bytes", ""},
		{"one byte too many in the import", files{"AGENTS.md": "@x", "x": strings.Repeat("x", 9)}, nil, Limits{ContextBytes: 10}, "more than 10 bytes", ""},
	}
	r := newRepository(t, filepath.Join(t.TempDir(), "r.git"))
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := contextOf(t, r, r.tree(tt.files, tt.others), tt.limits)
			var refused *RefusedError
			if !errors.As(err, &refused) || !strings.Contains(refused.Reason, tt.reason) || refused.Path != tt.path {
				t.Errorf("error is %v, want a refusal with %q of %q", err, tt.reason, tt.path)
			}
		})
	}
}

func TestContextAtTheLimits(t *testing.T) {
	r := newRepository(t, filepath.Join(t.TempDir(), "r.git"))
	many := files{}
	for n := range 256 {
		many[fmt.Sprintf("d%03d/AGENTS.md", n)] = ""
	}
	if got, err := contextOf(t, r, r.tree(many), Limits{}); err != nil || len(got) != 256 {
		t.Errorf("%d files, error %v", len(got), err)
	}
	if got, err := contextOf(t, r, r.tree(files{"AGENTS.md": "@x\n" + strings.Repeat("x", 1_999_996), "x": "y"}), Limits{}); err != nil || len(got) != 2 {
		t.Errorf("%d files, error %v", len(got), err)
	}
}

func TestEncodeContext(t *testing.T) {
	got, err := encodeContext("0a", []*contextFile{
		{blob: "1b", content: "\"\\/\b\f\n\r\t\x00\x1f\x7f<>&\u2028ü😀", mode: "100644", path: "ä\n"},
		{blob: "2c", content: "", mode: "100755", path: "z"},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := `{"base_sha":"0a","files":[{"blob_sha":"1b","content":"\"\\/\b\f\n\r\t\u0000\u001f` + "\x7f<>&\u2028ü😀" +
		`","mode":"100644","path":"ä\n"},{"blob_sha":"2c","content":"","mode":"100755","path":"z"}],"version":1}` + "\n"
	if string(got) != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func FuzzRecordSplitter(f *testing.F) {
	f.Add([]byte("a\x00bc\x00\x00d"), 2)
	f.Fuzz(func(t *testing.T, stream []byte, cut int) {
		var got []string
		s := &recordSplitter{visit: func(r string) error { got = append(got, r); return nil }}
		for rest := stream; len(rest) > 0; {
			n := min(max(cut, 1), len(rest))
			if _, err := s.Write(rest[:n]); err != nil {
				return // a record was too long
			}
			rest = rest[n:]
		}
		want := strings.Split(string(stream), "\x00")
		if !slices.Equal(got, want[:len(want)-1]) || string(s.rest) != want[len(want)-1] {
			t.Errorf("records %q and %q of %q", got, s.rest, stream)
		}
	})
}

func TestRecordSplitterIsBounded(t *testing.T) {
	s := &recordSplitter{visit: func(string) error { return nil }}
	var err error
	for range maxTreeRecord/1000 + 2 {
		if _, err = s.Write([]byte(strings.Repeat("x", 1000))); err != nil {
			break
		}
	}
	var refused *RefusedError
	if !errors.As(err, &refused) {
		t.Errorf("error is %v, want a refusal", err)
	}
}

func TestNameStatus(t *testing.T) {
	tests := map[string]struct {
		stream string
		want   int64
		ok     bool
	}{
		"nothing":           {"", 0, true},
		"two":               {"M\x00a\x00A\x00b\x00", 2, true},
		"rename":            {"R087\x00a\x00b\x00D\x00c\x00", 2, true},
		"path like a state": {"M\x00M\x00A\x00R100\x00", 2, true},
		"odd path":          {"M\x00a\nb\xff\x00", 1, true},
		"cut off":           {"M\x00a", 0, false},
		"no path":           {"M\x00", 0, false},
		"half a rename":     {"R100\x00a\x00", 0, false},
		"unmerged":          {"U\x00a\x00", 0, false},
		"no state":          {"\x00a\x00", 0, false},
		"not a state":       {"Mx\x00a\x00", 0, false},
	}
	for _, name := range slices.Sorted(maps.Keys(tests)) {
		tt := tests[name]
		t.Run(name, func(t *testing.T) {
			n := &nameStatus{}
			if _, err := n.Write([]byte(tt.stream)); err != nil {
				t.Fatal(err)
			}
			got, err := n.count()
			if (err == nil) != tt.ok || (tt.ok && got != tt.want) {
				t.Errorf("count = %d, %v, want %d, ok %v", got, err, tt.want, tt.ok)
			}
		})
	}
}
