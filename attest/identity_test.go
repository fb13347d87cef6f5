package attest

import (
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
