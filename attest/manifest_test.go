package attest

import (
	"encoding/json"
	"testing"

	"underwrite/attest/attesttest"
)

// The packed vectors are those that the manifest counts and digests.
func TestManifestVectors(t *testing.T) {
	var manifest map[string]struct {
		Vectors, Accept int
		SHA256          string
	}
	if err := json.Unmarshal(attesttest.File(t, "manifest.json"), &manifest); err != nil {
		t.Fatal(err)
	}
	if len(manifest) == 0 {
		t.Fatal("empty manifest")
	}
	for file, want := range manifest {
		if got := SHA256Hex(attesttest.File(t, file)); got != want.SHA256 {
			t.Errorf("%s: digest %s, want %s", file, got, want.SHA256)
		}
		accept := 0
		cases := attesttest.Load(t, file[:len(file)-len(".json")])
		for _, c := range cases {
			if c.Accept {
				accept++
			}
		}
		if len(cases) != want.Vectors || accept != want.Accept {
			t.Errorf("%s: %d vectors, %d accepted, want %+v", file, len(cases), accept, want)
		}
	}
}
