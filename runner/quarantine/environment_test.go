package quarantine

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestImportIgnoresTheEnvironment: neither configuration, nor a template with
// hooks, nor objects of elsewhere get into a quarantine repository.
func TestImportIgnoresTheEnvironment(t *testing.T) {
	r := newRepo(t, SHA1)
	blob := r.blob("content")
	head := r.commit(r.tree(item{"100644", "a", blob}))
	whole, target := r.bundle(head, head)
	all := strings.Fields(string(r.git(nil, "cat-file", "--batch-all-objects", "--batch-check=%(objectname)")))
	rest := strings.Join(slices.DeleteFunc(all, func(id string) bool { return id == blob }), "\n") + "\n"
	h := Header{Version: 2, Format: SHA1, Refs: []Ref{{head, BaseRef}, {head, HeadRef}}}
	lacking, lackingTarget := r.store(append(h.Encode(), r.git([]byte(rest), "pack-objects", "--stdout", "--quiet")...), head, head)

	hostile := t.TempDir()
	if err := os.MkdirAll(filepath.Join(hostile, "template/hooks"), 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(hostile, "template/hooks/reference-transaction"), []byte("#!/bin/sh\nexit 1\n"))
	write(t, filepath.Join(hostile, "config"), []byte("[init]\n\ttemplateDir = "+hostile+"/template\n[core]\n\thooksPath = "+hostile+"/template/hooks\n"))
	for name, value := range map[string]string{
		"GIT_CONFIG_GLOBAL": hostile + "/config", "GIT_CONFIG_SYSTEM": hostile + "/config", "GIT_TEMPLATE_DIR": hostile + "/template",
		"GIT_ALTERNATE_OBJECT_DIRECTORIES": filepath.Join(r.dir, "objects"), "GIT_OBJECT_DIRECTORY": filepath.Join(r.dir, "objects"),
		"GIT_DIR": r.dir, "HOME": hostile, "XDG_CONFIG_HOME": hostile,
		"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "core.hooksPath", "GIT_CONFIG_VALUE_0": hostile + "/template/hooks",
	} {
		t.Setenv(name, value)
	}

	gitDir := filepath.Join(t.TempDir(), "s.git")
	if _, err := ImportSource(t.Context(), gitDir, whole, target, testLimits); err != nil {
		t.Fatal(err)
	}
	var files []string
	err := filepath.WalkDir(gitDir, func(path string, d fs.DirEntry, err error) error {
		if name, _ := filepath.Rel(gitDir, path); err == nil && !d.IsDir() && !strings.HasPrefix(name, "objects/pack/pack-") {
			files = append(files, name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"HEAD", "config", BaseRef, HeadRef}; !slices.Equal(files, want) {
		t.Errorf("the repository holds %q beside its pack, want %q", files, want)
	}
	config, err := os.ReadFile(filepath.Join(gitDir, "config"))
	if want := "[core]\n\trepositoryformatversion = 0\n\tbare = true\n\tfsync = none\n"; err != nil || string(config) != want {
		t.Errorf("its configuration is %q, %v", config, err)
	}

	_, err = ImportSource(t.Context(), filepath.Join(t.TempDir(), "s.git"), lacking, lackingTarget, testLimits)
	mustRefuse(t, err)
}
