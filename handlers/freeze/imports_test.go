package freeze

import (
	"slices"
	"strings"
	"testing"
)

func TestImportRefs(t *testing.T) {
	tests := []struct {
		name string
		text string
		want []string
	}{
		{"line of its own", "@docs/style.md\n", []string{"docs/style.md"}},
		{"no newline at the end", "@a.md", []string{"a.md"}},
		{"within a sentence", "See @docs/style.md for more.", []string{"docs/style.md"}},
		{"full stop at the end", "See @docs/style.md.", []string{"docs/style.md"}},
		{"in brackets", "(@docs/style.md)", []string{"docs/style.md"}},
		{"two on a line", "@a.md, @b.md", []string{"a.md", "b.md"}},
		{"repeated", "@a.md @a.md", []string{"a.md"}},
		{"list item", "- @a.md\n  - @b.md\n", []string{"a.md", "b.md"}},
		{"carriage returns", "@a.md\r\n@b.md\r\n", []string{"a.md", "b.md"}},
		{"relative", "@./a.md @../b.md", []string{"./a.md", "../b.md"}},
		{"home", "@~/x.md", []string{"~/x.md"}},
		{"absolute", "@/etc/passwd", []string{"/etc/passwd"}},
		{"letters beyond ASCII", "@doku/größe.md", []string{"doku/größe.md"}},
		{"mention counts", "thanks @octocat", []string{"octocat"}},
		{"e-mail address", "mail me@example.com", nil},
		{"two at signs", "@@a.md", nil},
		{"URL", "@https://example.com/a.md", nil},
		{"lone at sign", "@ a.md @", nil},
		{"only dots", "@.. @... @./", nil},
		{"directory", "@docs/", []string{"docs"}},

		{"code span", "`@a.md` @b.md", []string{"b.md"}},
		{"longer code span", "`` ` @a.md `` @b.md", []string{"b.md"}},
		{"span of another length does not close", "`` @a.md ` @b.md", []string{"a.md", "b.md"}},
		{"open code span", "` @a.md\n@b.md", []string{"a.md", "b.md"}},
		{"fenced", "```\n@a.md\n```\n@b.md", []string{"b.md"}},
		{"fenced with tildes", "~~~ md\n@a.md\n```\n@c.md\n~~~\n@b.md", []string{"b.md"}},
		{"longer fence closes", "```\n@a.md\n`````\n@b.md", []string{"b.md"}},
		{"shorter fence does not close", "````\n@a.md\n```\n@b.md\n````\n@c.md", []string{"c.md"}},
		{"closing fence with words does not close", "```\n@a.md\n``` x\n@b.md\n```\n@c.md", []string{"c.md"}},
		{"fence never closed", "```\n@a.md\n", nil},
		{"indented fence", "   ```\n@a.md\n   ```\n@b.md", []string{"b.md"}},
		{"backticks in the info string are no fence", "``` `x`\n@a.md", []string{"a.md"}},
		{"indented code", "    @a.md\n\t@b.md\n   @c.md", []string{"c.md"}},

		{"comment", "<!-- @a.md --> @b.md", []string{"b.md"}},
		{"comment over lines", "<!--\n@a.md\n-->\n@b.md", []string{"b.md"}},
		{"several comments on a line", "<!--@a.md-->@b.md<!--@c.md-->@d.md", []string{"b.md", "d.md"}},
		{"open comment hides nothing", "<!-- @a.md\n@b.md", []string{"a.md", "b.md"}},
		{"fence in a comment", "<!--\n```\n-->\n@a.md", []string{"a.md"}},
		{"comment in a code span", "`<!--` @a.md `-->`", []string{"a.md"}},
		{"comment in fenced code", "```\n<!--\n```\n@a.md\n-->", []string{"a.md"}},
		{"span closes in a comment", "` <!-- ` --> @a.md", []string{"a.md"}},
		{"behind a comment no fence opens", "<!--\n-->```\n@a.md", []string{"a.md"}},
		{"empty", "", nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := importRefs(tt.text); !slices.Equal(got, tt.want) {
				t.Errorf("importRefs(%q) = %q, want %q", tt.text, got, tt.want)
			}
		})
	}
}

func TestResolveImport(t *testing.T) {
	tests := []struct {
		from, ref, want string
		ok              bool
	}{
		{"CLAUDE.md", "a.md", "a.md", true},
		{"sub/CLAUDE.md", "a.md", "sub/a.md", true},
		{"sub/CLAUDE.md", "../a.md", "a.md", true},
		{"sub/CLAUDE.md", "./x/./y/../a.md", "sub/x/a.md", true},
		{"CLAUDE.md", "../a.md", "", false},
		{"sub/CLAUDE.md", "../../a.md", "", false},
		{"sub/CLAUDE.md", "x/../../../a.md", "", false},
		{"CLAUDE.md", "/etc/passwd", "", false},
		{"CLAUDE.md", "~/a.md", "", false},
		{"CLAUDE.md", "~octocat/a.md", "", false},
		{"CLAUDE.md", "x/..", "", false},
	}
	for _, tt := range tests {
		got, ok := resolveImport(tt.from, tt.ref)
		if got != tt.want || ok != tt.ok {
			t.Errorf("resolveImport(%q, %q) = %q, %v, want %q, %v", tt.from, tt.ref, got, ok, tt.want, tt.ok)
		}
	}
}

func FuzzImportRefs(f *testing.F) {
	for _, seed := range []string{
		"@a.md", "`@a`<!--@b-->\n```\n@c\n```\n", "<!--`-->`@x`", "@../x @/y @~/z", "\t@a\r\n~~~\n@b", "é@a @é/ü.md", "\xff@a\xfe@b",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		refs := importRefs(text)
		for _, ref := range refs {
			if !strings.Contains(text, "@"+ref) {
				t.Errorf("%q is not in the text", ref)
			}
			if again := importRefs("@" + ref); !slices.Equal(again, []string{ref}) {
				t.Errorf("@%s alone gives %q", ref, again)
			}
			p, ok := resolveImport("a/b.md", ref)
			if ok && (p == "" || p[0] == '/' || slices.Contains(strings.Split(p, "/"), "..")) {
				t.Errorf("%q resolves to %q", ref, p)
			}
		}
		// What is text stays text when plain text precedes it; code hides all.
		if got := importRefs("Words.\n" + text); !slices.Equal(got, refs) {
			t.Errorf("a line before changes %q to %q", refs, got)
		}
		if got := importRefs("    " + strings.ReplaceAll(text, "\n", "\n    ")); len(got) != 0 {
			t.Errorf("indented code imports %q", got)
		}
		if got := importRefs("````````````````\n" + strings.ReplaceAll(text, "`", "'")); len(got) != 0 {
			t.Errorf("fenced code imports %q", got)
		}
	})
}
