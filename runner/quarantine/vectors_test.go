package quarantine

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"underwrite/attest"
	"underwrite/attest/attesttest"
	"underwrite/attest/gittree"
	"underwrite/runner/confine"
)

func TestMain(m *testing.M) {
	confine.MaybeExec()
	os.Exit(m.Run())
}

func TestOutputVectors(t *testing.T) {
	attesttest.Run(t, "output_bundle", func(t *testing.T, c attesttest.Case) {
		var l Limits
		c.Decode(t, "maximum_workspace_bytes", &l.WorkspaceBytes)
		c.Decode(t, "maximum_bundle_bytes", &l.BundleBytes)
		path := filepath.Join(t.TempDir(), "bundle")
		write(t, path, c.Bytes(t, "bundle"))
		var want *attest.Bundle
		if c.Has("expected") {
			want = new(attest.Bundle)
			c.Decode(t, "expected", want)
		}
		scratch := t.TempDir()
		got, err := VerifyOutput(t.Context(), path, scratch, want, l)
		mustBeEmpty(t, scratch)
		if !c.Accept {
			mustRefuse(t, err)
			return
		}
		var descriptor attest.Bundle
		c.Decode(t, "descriptor", &descriptor)
		if err != nil || got != descriptor {
			t.Fatalf("descriptor = %+v, %v, want %+v", got, err, descriptor)
		}
	})
}

func TestSourceVectors(t *testing.T) {
	attesttest.Run(t, "source_bundle", func(t *testing.T, c attesttest.Case) {
		l := Limits{BundleBytes: 2 << 20}
		c.Decode(t, "maximum_workspace_bytes", &l.WorkspaceBytes)
		var target attest.Target
		if err := json.Unmarshal(c.Raw("target"), &target); err != nil {
			if c.Accept {
				t.Fatal(err)
			}
			return // refused while it is read
		}
		dir := t.TempDir()
		path := filepath.Join(dir, "bundle")
		write(t, path, c.Bytes(t, "bundle"))
		tree, err := importAndMeasure(t, filepath.Join(dir, "source.git"), path, target, l)
		if !c.Accept {
			mustRefuse(t, err)
			return
		}
		if want := c.Text(t, "input_tree"); err != nil || tree != want {
			t.Fatalf("tree = %s, %v, want %s", tree, err, want)
		}
	})
}

// importAndMeasure takes the head through the whole quarantine: imported,
// walked, written to a directory and measured there, which must give the tree
// that the blobs alone give.
func importAndMeasure(t *testing.T, gitDir, bundle string, target attest.Target, l Limits) (string, error) {
	t.Helper()
	s, err := ImportSource(t.Context(), gitDir, bundle, target, l)
	if err != nil {
		if _, statErr := os.Lstat(gitDir); statErr == nil {
			t.Errorf("a refused bundle left %s behind", gitDir)
		}
		return "", err
	}
	walked, err := s.Walk(t.Context(), s.Head, l)
	if err != nil {
		return "", err
	}
	dir := t.TempDir()
	if err := s.Materialize(t.Context(), walked, dir, -1, -1); err != nil {
		t.Fatal(err)
	}
	measured, stats, err := gittree.Measure(t.Context(), dir, gittree.DefaultLimits(l.WorkspaceBytes))
	if err != nil {
		t.Fatal(err)
	}
	if stats.Bytes != walked.Bytes || stats.Files+stats.Links != len(walked.Entries) {
		t.Errorf("measured %+v, walked %d entries of %d bytes", stats, len(walked.Entries), walked.Bytes)
	}
	computed, err := s.GitTree(t.Context(), walked)
	if err != nil {
		t.Fatal(err)
	}
	if computed != measured {
		t.Errorf("tree of the blobs = %s, measured = %s", computed, measured)
	}
	return computed, nil
}
