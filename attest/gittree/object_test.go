package gittree

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"testing/iotest"
)

func TestBlobIDChecksTheSize(t *testing.T) {
	id, err := BlobID(5, iotest.OneByteReader(strings.NewReader("hello")))
	if err != nil {
		t.Fatal(err)
	}
	if whole, err := BlobID(5, strings.NewReader("hello")); err != nil || whole != id {
		t.Errorf("%s, then %s, %v", id, whole, err)
	}
	for name, size := range map[string]int64{"short": 6, "long": 4, "negative": -1, "largest": 1<<63 - 1} {
		if _, err := BlobID(size, strings.NewReader("hello")); !errors.Is(err, ErrSize) {
			t.Errorf("%s: %v", name, err)
		}
	}
	broken := errors.New("broken")
	if _, err := BlobID(5, iotest.ErrReader(broken)); !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
	// The id of the empty blob, as git prints it in a SHA-256 repository.
	const empty = "473a0f4c3be8a93681a267e3b1e9a7dcda1185436fe141f7749120a303721813"
	if id, err := BlobID(0, bytes.NewReader(nil)); err != nil || id.String() != empty {
		t.Errorf("empty blob %s, %v", id, err)
	}
}

func TestTreeBodyOrder(t *testing.T) {
	body, err := TreeBody([]Entry{
		{Name: "a0", Mode: ModeFile}, {Name: "a", Mode: ModeDirectory}, {Name: "a.c", Mode: ModeExecutable},
		{Name: "a-", Mode: ModeLink}, {Name: "b", Mode: ModeFile},
	})
	if err != nil {
		t.Fatal(err)
	}
	zero := string(make([]byte, 32))
	want := "120000 a-\x00" + zero + "100755 a.c\x00" + zero + "40000 a\x00" + zero + "100644 a0\x00" + zero + "100644 b\x00" + zero
	if string(body) != want {
		t.Errorf("got %q", body)
	}
}

func TestTreeBodyRefuses(t *testing.T) {
	file := func(name string) Entry { return Entry{Name: name, Mode: ModeFile} }
	for name, entries := range map[string][]Entry{
		"nothing":                nil,
		"empty name":             {file("")},
		"dot":                    {file(".")},
		"dot dot":                {file("..")},
		"slash":                  {file("a/b")},
		"NUL":                    {file("a\x00")},
		"git":                    {file(".GIT")},
		"git directory":          {{Name: ".git", Mode: ModeDirectory}},
		"gitlink":                {{Name: "a", Mode: 0o160000}},
		"group-writable":         {{Name: "a", Mode: 0o100664}},
		"twice":                  {file("a"), file("a")},
		"file and directory":     {file("a"), file("a."), {Name: "a", Mode: ModeDirectory}},
		"directory, zeroed mode": {{Name: "a"}},
	} {
		if _, err := TreeBody(entries); !errors.Is(err, ErrEntry) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestRootIDRefuses(t *testing.T) {
	file := func(path string) File { return File{Path: path, Mode: ModeFile} }
	for name, files := range map[string][]File{
		"nothing":             nil,
		"absolute":            {file("/a")},
		"trailing slash":      {file("a/")},
		"empty component":     {file("a//b")},
		"escape":              {file("a/../b")},
		"file as directory":   {file("a"), file("a/b")},
		"twice":               {file("a/b"), file("a/b")},
		"directory":           {{Path: "a", Mode: ModeDirectory}},
		"git below":           {file("a/.git/config")},
		"too many components": {file(strings.Repeat("a/", MaxDepth) + "a")},
	} {
		if _, err := RootID(files); !errors.Is(err, ErrEntry) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := RootID([]File{file(strings.Repeat("a/", MaxDepth-1) + "a")}); err != nil {
		t.Errorf("deepest path: %v", err)
	}
}
