// Package attesttest reads the protocol's conformance vectors for tests.
package attesttest

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// DirVariable names an environment variable with another directory of vectors,
// of plain .json files in the same form. Unset, testdata/vectors is read.
const DirVariable = "UNDERWRITE_VECTORS"

// maxFile bounds an unpacked vector file.
const maxFile = 256 << 20

// Case is one vector.
type Case struct {
	Name   string
	Accept bool // the reference's answer
	fields map[string]json.RawMessage
}

// Run runs check for every case of FILE.json as the sub-test FILE/NAME. A file
// without cases fails.
func Run(t *testing.T, file string, check func(*testing.T, Case)) {
	t.Helper()
	cases := Load(t, file)
	t.Run(file, func(t *testing.T) {
		for _, c := range cases {
			t.Run(c.Name, func(t *testing.T) { check(t, c) })
		}
	})
}

// Load reads all cases of FILE.json.
func Load(t testing.TB, file string) []Case {
	t.Helper()
	var raw []map[string]json.RawMessage
	if err := json.Unmarshal(File(t, file+".json"), &raw); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	if len(raw) == 0 {
		t.Fatalf("%s: no vectors", file)
	}
	cases := make([]Case, len(raw))
	for i, fields := range raw {
		c := Case{fields: fields}
		var expect string
		c.Decode(t, "name", &c.Name)
		c.Decode(t, "expect", &expect)
		c.Accept = c.answer(t, expect)
		cases[i] = c
	}
	return cases
}

func (c Case) answer(t testing.TB, word string) bool {
	t.Helper()
	if word != "accept" && word != "reject" {
		t.Fatalf("%s: expects %q", c.Name, word)
	}
	return word == "accept"
}

// File reads a file of the vectors' directory, packed or not.
func File(t testing.TB, name string) []byte {
	t.Helper()
	path := filepath.Join(dir(t), filepath.FromSlash(name))
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		if data, err = os.ReadFile(path + ".gz"); err == nil {
			return gunzip(t, data)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// dir finds testdata/vectors at the root of the module.
func dir(t testing.TB) string {
	t.Helper()
	if dir := os.Getenv(DirVariable); dir != "" {
		return dir
	}
	at, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(at, "go.mod")); err == nil {
			return filepath.Join(at, "testdata", "vectors")
		}
		if at == filepath.Dir(at) {
			t.Fatal("no go.mod above the test's directory")
		}
		at = filepath.Dir(at)
	}
}

// Has reports whether the case has the field, in any of its forms.
func (c Case) Has(field string) bool {
	return c.fields[field] != nil || c.fields[field+"_base64"] != nil || c.fields[field+"_gz_base64"] != nil
}

// Raw is the JSON text of a field; nil if it is missing.
func (c Case) Raw(field string) []byte { return c.fields[field] }

// Decode stores a JSON field in v, which must be there.
func (c Case) Decode(t testing.TB, field string, v any) {
	t.Helper()
	if err := json.Unmarshal(c.fields[field], v); err != nil {
		t.Fatalf("field %s: %v", field, err)
	}
}

// Text is a field that holds a string.
func (c Case) Text(t testing.TB, field string) string {
	t.Helper()
	var s string
	c.Decode(t, field, &s)
	return s
}

// Answer is a field that says accept or reject.
func (c Case) Answer(t testing.TB, field string) bool {
	t.Helper()
	return c.answer(t, c.Text(t, field))
}

// Bytes is a byte field: FIELD_base64, FIELD_gz_base64 or, as a JSON text, FIELD.
func (c Case) Bytes(t testing.TB, field string) []byte {
	t.Helper()
	var data []byte
	switch {
	case c.fields[field+"_base64"] != nil:
		c.Decode(t, field+"_base64", &data)
	case c.fields[field+"_gz_base64"] != nil:
		var length int
		c.Decode(t, field+"_gz_base64", &data)
		c.Decode(t, field+"_length", &length)
		if data = gunzip(t, data); len(data) != length {
			t.Fatalf("field %s: %d bytes, not %d", field, len(data), length)
		}
	case c.fields[field] != nil:
		data = c.fields[field]
	default:
		t.Fatalf("field %s is missing", field)
	}
	return data
}

// Base64 decodes text of a nested field.
func Base64(t testing.TB, text string) []byte {
	t.Helper()
	data, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func gunzip(t testing.TB, packed []byte) []byte {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(io.LimitReader(z, maxFile))
	if err != nil {
		t.Fatal(err)
	}
	return data
}
