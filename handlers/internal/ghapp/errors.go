package ghapp

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/bradleyfalzon/ghinstallation/v2"
	"github.com/gofri/go-github-ratelimit/v2/github_ratelimit/github_primary_ratelimit"
	"github.com/google/go-github/v66/github"

	"underwrite/handlers/checks"
)

// maxMessageBytes bounds what of GitHub's message an Error repeats.
const maxMessageBytes = 300

// defaultLimitWait is what GitHub asks for when a rate limit names no time.
const defaultLimitWait = time.Minute

// Error is a failed call. It holds text only, never a request or response,
// whose headers carry credentials. It wraps checks.ErrGone if a retry is of no
// use, or the context's error; everything else may be retried.
type Error struct {
	Op         string        // what was tried, with the noun
	Status     int           // HTTP status, 0 without an answer
	Message    string        // what GitHub or the network said
	RetryAfter time.Duration // how long GitHub asks to wait, 0 if it does not say
	cause      error
}

func (e *Error) Error() string {
	s := e.Op + ": "
	if e.Status != 0 {
		s += fmt.Sprintf("GitHub answered %d: ", e.Status)
	}
	s += e.Message
	if e.RetryAfter > 0 {
		s += fmt.Sprintf(" (wait %s)", e.RetryAfter.Round(time.Second))
	}
	return s
}

// Unwrap returns checks.ErrGone, a context error, or nil.
func (e *Error) Unwrap() error { return e.cause }

// classify turns any error of the client libraries into an Error.
func classify(op string, err error) error {
	if err == nil {
		return nil
	}
	e := &Error{Op: op}
	var (
		primary   *github_primary_ratelimit.RateLimitReachedError
		rate      *github.RateLimitError
		secondary *github.AbuseRateLimitError
		answer    *github.ErrorResponse
		token     *ghinstallation.HTTPError
	)
	switch {
	case errors.As(err, &primary):
		e.limited("rate limit is used up", until(primary.ResetTime))
	case errors.As(err, &rate):
		e.limited("rate limit is used up", until(&rate.Rate.Reset.Time))
	case errors.As(err, &secondary):
		e.limited("secondary rate limit", deref(secondary.RetryAfter))
	case errors.As(err, &answer) && answer.Response != nil:
		e.answered(answer.Response, answer.Message, answer.Errors)
	case errors.As(err, &token) && token.Response != nil:
		token.Response.Body.Close() // left open by the library
		e.answered(token.Response, "no installation token", nil)
	default:
		e.failed(err)
	}
	e.Message = oneLine(e.Message)
	return e
}

func (e *Error) limited(message string, wait time.Duration) {
	e.Status, e.Message, e.RetryAfter = http.StatusTooManyRequests, message, wait
	if e.RetryAfter <= 0 {
		e.RetryAfter = defaultLimitWait
	}
}

// answered judges an answer that is no success.
func (e *Error) answered(r *http.Response, message string, details []github.Error) {
	e.Status, e.Message = r.StatusCode, message
	for _, d := range details {
		e.Message += "; " + strings.TrimSpace(d.Resource+" "+d.Field+" "+d.Code+" "+d.Message)
	}
	if seconds, err := strconv.Atoi(r.Header.Get("Retry-After")); err == nil && seconds > 0 && seconds <= 86400 {
		e.RetryAfter = time.Duration(seconds) * time.Second
	}
	switch {
	case r.StatusCode == http.StatusForbidden && e.RetryAfter > 0:
		// a limit, whatever its text says
	case r.StatusCode == http.StatusForbidden && strings.Contains(strings.ToLower(message), "rate limit"):
		e.RetryAfter = defaultLimitWait
	case r.StatusCode == http.StatusForbidden, r.StatusCode == http.StatusNotFound,
		r.StatusCode == http.StatusGone, r.StatusCode == http.StatusUnavailableForLegalReasons:
		e.cause = checks.ErrGone
	case r.StatusCode == http.StatusUnprocessableEntity && strings.Contains(message, "No commit found for SHA"):
		e.cause = checks.ErrGone
	case r.StatusCode == http.StatusTooManyRequests && e.RetryAfter == 0:
		e.RetryAfter = defaultLimitWait
	}
}

// failed is for calls without an answer, or with one that cannot be read.
func (e *Error) failed(err error) {
	var inner *url.Error
	if errors.As(err, &inner) {
		err = inner.Err
	}
	e.Message = err.Error()
	for _, c := range []error{context.Canceled, context.DeadlineExceeded} {
		if errors.Is(err, c) {
			e.cause = c
		}
	}
}

func until(t *time.Time) time.Duration {
	if t == nil {
		return 0
	}
	return time.Until(*t)
}

func deref(d *time.Duration) time.Duration {
	if d == nil {
		return 0
	}
	return *d
}

func oneLine(s string) string {
	s = checks.Visible(s, false)
	if len(s) > maxMessageBytes {
		s = strings.ToValidUTF8(s[:maxMessageBytes], "") + "…"
	}
	return s
}
