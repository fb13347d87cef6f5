package controller

import (
	"fmt"

	"underwrite/attest"
	"underwrite/store"
)

// buildRequest makes the request of a check's next execution from our own
// records alone. Its challenge is new.
func buildRequest(s store.Session, c store.Check, seq int64) (store.Reservation, error) {
	profile, err := attest.ParseProfile(c.Profile)
	if err != nil {
		return store.Reservation{}, fmt.Errorf("profile of check %s: %w", c.Name, err)
	}
	target, err := attest.ParseTarget(s.Target)
	if err != nil {
		return store.Reservation{}, fmt.Errorf("target of session %s: %w", s.ID, err)
	}
	request := attest.Request{
		Version: 1, ProfileName: c.ProfileName, Profile: profile,
		SessionID: s.ID, Challenge: attest.NewChallenge(), Target: target,
		Action: attest.Action{Seq: seq, Beat: c.Beat, Attempt: 1},
	}
	canonical, err := request.Canonical()
	if err != nil {
		return store.Reservation{}, fmt.Errorf("request of check %s: %w", c.Name, err)
	}
	return store.Reservation{
		Challenge: request.Challenge, Request: canonical, RequestSHA256: attest.SHA256Hex(canonical), Predicted: profile.ExitCode,
	}, nil
}
