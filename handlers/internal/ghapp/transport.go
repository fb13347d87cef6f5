package ghapp

import (
	"errors"
	"net/http"
	"net/url"
)

// maxResponseBytes bounds one answer. The largest is a page of check runs with
// their texts.
const maxResponseBytes = 64 << 20

// errForeignHost: GitHub redirected a call to another host. Each hop of a
// redirect is signed anew by the transport above, so it must not be followed.
var errForeignHost = errors.New("redirected to another host")

// guard is the innermost transport: it sends calls to the API's host only, and
// bounds the answers.
type guard struct {
	api  *url.URL
	next http.RoundTripper
}

func (g *guard) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme != g.api.Scheme || r.URL.Host != g.api.Host {
		if r.Body != nil {
			r.Body.Close()
		}
		return nil, errForeignHost
	}
	next := g.next
	if next == nil {
		next = http.DefaultTransport
	}
	resp, err := next.RoundTrip(r)
	if err == nil && resp.Body != nil {
		resp.Body = http.MaxBytesReader(nil, resp.Body, maxResponseBytes)
	}
	return resp, err
}

// rewind gives each attempt of a request its body. The rate limiter above
// repeats a request after a limit, and the first attempt has used the body up.
type rewind struct{ next http.RoundTripper }

func (t rewind) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.GetBody == nil {
		return t.next.RoundTrip(r)
	}
	body, err := r.GetBody()
	if err != nil {
		return nil, err
	}
	again := r.Clone(r.Context())
	again.Body = body
	return t.next.RoundTrip(again)
}
