package handlers

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"os"
	"slices"
	"testing"

	"go.yaml.in/yaml/v3"
)

// manifest is the part of app.yml that GitHub reads.
type manifest struct {
	Name           string `yaml:"name"`
	URL            string `yaml:"url"`
	Description    string `yaml:"description"`
	Public         bool   `yaml:"public"`
	HookAttributes struct {
		URL    string `yaml:"url"`
		Active bool   `yaml:"active"`
	} `yaml:"hook_attributes"`
	Permissions map[string]string `yaml:"default_permissions"`
	Events      []string          `yaml:"default_events"`
}

func readManifest(t *testing.T) manifest {
	t.Helper()
	b, err := os.ReadFile("../app.yml")
	if err != nil {
		t.Fatal(err)
	}
	dec := yaml.NewDecoder(bytes.NewReader(b))
	dec.KnownFields(true)
	var m manifest
	if err := dec.Decode(&m); err != nil {
		t.Fatal(err)
	}
	if err := dec.Decode(new(any)); !errors.Is(err, io.EOF) {
		t.Fatalf("after the document: %v", err)
	}
	return m
}

// TestManifestEvents: each event that GitHub sends to the App is handled or
// known to be unhandled, and nothing is handled that GitHub does not send.
func TestManifestEvents(t *testing.T) {
	m := readManifest(t)
	withoutSubscription := []string{"check_run", "check_suite", "installation", "installation_repositories", "ping"}
	sent := slices.Sorted(slices.Values(append(slices.Clone(m.Events), withoutSubscription...)))
	dispatcher := newDispatcher(t, &world{}, received)
	known := slices.Sorted(slices.Values(append(dispatcher.Events(), unhandledEvents...)))
	if !slices.Equal(sent, known) {
		t.Errorf("GitHub sends %q, we know %q", sent, known)
	}
	if shaped := slices.Sorted(maps.Keys(shapes)); !slices.Equal(sent, shaped) {
		t.Errorf("GitHub sends %q, shapes are known of %q", sent, shaped)
	}
}

// TestManifestPermissions: writing check runs is all that the App may do.
func TestManifestPermissions(t *testing.T) {
	want := map[string]string{
		"metadata": "read", "contents": "read", "pull_requests": "read",
		"issues": "read", "merge_queues": "read", "checks": "write",
	}
	if m := readManifest(t); !maps.Equal(m.Permissions, want) || m.Public || !m.HookAttributes.Active {
		t.Errorf("manifest %+v", m)
	}
}
