package hubsim

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestOperationsAreDescribed: what the hub simulates is in the description.
func TestOperationsAreDescribed(t *testing.T) {
	api, err := loadDescription()
	if err != nil {
		t.Fatal(err)
	}
	described := map[string]bool{}
	for _, r := range api.routes {
		described[r.Operation.OperationID] = true
	}
	for id := range operations {
		if !described[id] {
			t.Errorf("operation %s is not in the description", id)
		}
	}
}

// TestOwnResponses: an answer of the hub's own that breaks the description, or
// an error that is none of GitHub's, becomes a 500 and a violation.
func TestOwnResponses(t *testing.T) {
	for _, tc := range []struct {
		name   string
		status int
		body   any
		err    error
		code   int
		says   string // in the violation; empty: none is expected
	}{
		{"good", 200, object{"verifiable_password_authentication": false}, nil, 200, ""},
		{"missing field", 200, object{}, nil, 500, "verifiable_password_authentication"},
		{"wrong type", 200, object{"verifiable_password_authentication": "no"}, nil, 500, "verifiable_password_authentication"},
		{"status that is not described", 201, object{}, nil, 500, "status is not supported"},
		{"error of GitHub's", 0, nil, notFound, 404, ""},
		{"422 without documentation_url", 422, object{"message": "m"}, nil, 500, "documentation_url"},
		{"error of another shape", 403, object{"message": 1}, nil, 500, "message"},
		{"failure of the hub", 0, nil, errors.New("out of luck"), 500, "out of luck"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h, err := New(Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer h.Close()
			old := operations["meta/get"]
			defer func() { operations["meta/get"] = old }()
			operations["meta/get"] = operation{serve: func(*Hub, *call) (int, any, error) { return tc.status, tc.body, tc.err }}
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/meta", nil))
			if w.Code != tc.code {
				t.Errorf("status %d %s, want %d", w.Code, w.Body, tc.code)
			}
			v := h.Violations()
			if tc.says == "" && len(v) > 0 || tc.says != "" && (len(v) != 1 || !strings.Contains(v[0], tc.says)) {
				t.Errorf("violations %q, want %q", v, tc.says)
			}
		})
	}
}
