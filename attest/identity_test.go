package attest

import (
	"reflect"
	"regexp"
	"testing"
)

func TestReplayKey(t *testing.T) {
	// SHA-256 of the canonical object written out by hand.
	text := `{"attempt":3,"beat":2,"challenge":"c","executorId":"e","jobDigest":"j","seq":1,"sessionId":"s","signerId":"é"}`
	got, err := ReplayKey("é", "e", "s", "c", Action{Seq: 1, Beat: 2, Attempt: 3}, "j")
	if err != nil || got != SHA256Hex([]byte(text)) {
		t.Errorf("%s, %v", got, err)
	}
	if _, err := ReplayKey("\xff", "e", "s", "c", Action{1, 1, 1}, "j"); err == nil {
		t.Error("accepted text that is not UTF-8")
	}
}

func TestRequestExpected(t *testing.T) {
	e := testExpectation().Expected
	if got := testRequest().Expected(e.InputTree); !reflect.DeepEqual(got, e) {
		t.Errorf("%+v", got)
	}
}

// Each of the eight values makes another key.
func TestRequestReplayKey(t *testing.T) {
	seen := map[string]string{}
	for name, change := range map[string]func(*Request){
		"unchanged": func(*Request) {},
		"signer":    func(r *Request) { r.Profile.SignerID = "x" },
		"executor":  func(r *Request) { r.Profile.ExecutorID = "x" },
		"session":   func(r *Request) { r.SessionID = "00000000-0000-0000-0000-000000000000" },
		"challenge": func(r *Request) { r.Challenge = digits("f") },
		"seq":       func(r *Request) { r.Action.Seq++ },
		"beat":      func(r *Request) { r.Action.Beat++ },
		"attempt":   func(r *Request) { r.Action.Attempt++ },
		"job":       func(r *Request) { r.Profile.Job.Cwd = "src" },
	} {
		r := testRequest()
		change(&r)
		key, err := r.ReplayKey()
		if err != nil {
			t.Fatal(err)
		}
		if other, ok := seen[key]; ok {
			t.Errorf("%s has the key of %s", name, other)
		}
		seen[key] = name
	}
	r := testRequest()
	r.Target.Number++ // no part of the replay identity
	if key, err := r.ReplayKey(); err != nil || seen[key] != "unchanged" {
		t.Errorf("%q, %v", seen[key], err)
	}
}

func TestDigestsRefuseInvalidDocuments(t *testing.T) {
	if _, err := TargetDigest(Target{}); err == nil {
		t.Error("digest of an invalid target")
	}
	if _, err := JobDigest(Job{}); err == nil {
		t.Error("digest of an invalid job")
	}
}

func TestRandomNames(t *testing.T) {
	challenge := regexp.MustCompile(`^[0-9a-f]{64}$`)
	uuid := regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
	seen := map[string]bool{}
	for range 100 {
		c, u := NewChallenge(), NewUUID()
		if !challenge.MatchString(c) || !uuid.MatchString(u) || seen[c] || seen[u] {
			t.Fatalf("%s %s", c, u)
		}
		seen[c], seen[u] = true, true
	}
}
