package hubsim

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Limits of the API.
const (
	maxRequestBody = 8 << 20 // bytes; the largest has two texts and 50 annotations, of 64 KiB each
	perPageDefault = 30
	perPageMax     = 100
	rateWindow     = time.Hour
)

const docsURL = "https://docs.github.com/rest"

// apiError is an error that the API answers with.
type apiError struct {
	status    int
	message   string
	errors    []fieldError
	violation bool // the caller broke a rule it must know
}

// fieldError is one of the errors of a 422.
type fieldError struct {
	Resource string `json:"resource"`
	Field    string `json:"field"`
	Code     string `json:"code"`
	Message  string `json:"message,omitempty"`
}

func (e *apiError) Error() string {
	s := e.message
	for _, f := range e.errors {
		s += fmt.Sprintf("; %s.%s: %s %s", f.Resource, f.Field, f.Code, f.Message)
	}
	return s
}

func (e *apiError) body() object {
	o := object{"message": e.message, "documentation_url": docsURL, "status": strconv.Itoa(e.status)}
	if len(e.errors) > 0 {
		o["errors"] = e.errors
	}
	return o
}

var (
	notFound      = &apiError{status: http.StatusNotFound, message: "Not Found"}
	notAccessible = &apiError{status: http.StatusForbidden, message: "Resource not accessible by integration"}
)

func unprocessable(message string) *apiError {
	return &apiError{status: http.StatusUnprocessableEntity, message: message}
}

// broken is a 422 for a breach of a rule that is not in the description.
func broken(resource, field, message string) *apiError {
	return &apiError{
		status: http.StatusUnprocessableEntity, message: "Validation Failed", violation: true,
		errors: []fieldError{{Resource: resource, Field: field, Code: "invalid", Message: message}},
	}
}

// operation is what the hub does for an operation of the description.
type operation struct {
	who         kind     // anonymous: everybody
	permissions []string // any of these, of an installation token
	level       string   // of the permission
	serve       func(*Hub, *call) (status int, body any, err error)
}

// operations are those that the hub simulates, by operationId. serve is called
// with mu held.
var operations = map[string]operation{}

// call is one request that passed authentication.
type call struct {
	op     operation
	who    *principal
	params map[string]string
	query  url.Values
	body   []byte
	repo   *repository // of paths with {owner}/{repo}
	url    *url.URL
	base   string
	link   []string // of the response
	rate   rate     // of the caller, after this call
}

// intParam is a path parameter that the description says is an integer.
func (c *call) intParam(name string) int64 {
	n, _ := strconv.ParseInt(c.params[name], 10, 64) // checked against the description
	return n
}

// serve is the hub's handler inside of the middleware.
func (h *Hub) serve(w http.ResponseWriter, r *http.Request) {
	if repo, rest, ok := gitPath(r.URL.Path); ok {
		h.serveGit(w, r, repo, rest)
		return
	}
	if h.servePage(w, r) {
		return
	}
	path := strings.TrimPrefix(r.URL.EscapedPath(), "/api/v3")
	route, params := h.api.find(r.Method, path)
	if route == nil {
		h.violation("%s %s is not in the description", r.Method, path)
		writeJSON(w, http.StatusNotFound, mustJSON(notFound.body()))
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxRequestBody))
	if err != nil {
		writeJSON(w, http.StatusRequestEntityTooLarge, mustJSON(object{"message": "Request body too large"}))
		return
	}
	h.serveAPI(w, r, route, params, body)
}

func (h *Hub) serveAPI(w http.ResponseWriter, r *http.Request, route *route, params map[string]string, body []byte) {
	id := route.Operation.OperationID
	if id == "apps/create-installation-access-token" && string(bytes.TrimSpace(body)) == "null" {
		body = nil // GitHub takes null for "not narrowed", and ghinstallation sends it
	}
	in, invalid := route.checkRequest(r, params, body)
	c := &call{params: params, query: in.GetQueryParams(), body: body, url: r.URL}
	status, answer, err := h.answer(r, id, c, invalid)
	if err != nil {
		status, answer = h.failed(r, err)
	}
	var data []byte
	if answer != nil {
		data = mustJSON(answer)
	}
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	if len(c.link) > 0 {
		w.Header().Set("Link", strings.Join(c.link, ", "))
	}
	h.setRateHeader(w.Header(), c)
	if err := h.api.checkResponse(in, status, w.Header(), data); err != nil {
		h.violation("response to %s %s (%d): %s", r.Method, r.URL.Path, status, firstLine(err))
		status, data = http.StatusInternalServerError, mustJSON(object{"message": "the hub's own response breaks the description", "documentation_url": docsURL})
	}
	writeJSON(w, status, data)
}

// failed turns an error into a response, and records it where the caller broke
// a rule.
func (h *Hub) failed(r *http.Request, err error) (int, any) {
	var e *apiError
	if !errors.As(err, &e) {
		h.violation("%s %s: the hub failed: %v", r.Method, r.URL.Path, err)
		e = &apiError{status: http.StatusInternalServerError, message: "Server Error"}
	}
	if e.violation {
		h.violation("%s %s: %v", r.Method, r.URL.Path, e)
	}
	return e.status, e.body()
}

func writeJSON(w http.ResponseWriter, status int, body []byte) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.Header().Set("X-Github-Request-Id", randomHex(16))
	if status == http.StatusNoContent {
		w.WriteHeader(status)
		return
	}
	w.WriteHeader(status)
	_, _ = w.Write(body) // the client may be gone
}

// answer authenticates, authorizes and serves a request, in GitHub's order.
// invalid is what the description says against the request.
func (h *Hub) answer(r *http.Request, id string, c *call, invalid error) (int, any, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	c.base = h.base
	var err error
	if c.who, err = h.authenticate(r); err != nil {
		return 0, nil, err
	}
	allowed := id == "rate-limit/get" || h.spend(c.who)
	c.rate = *h.rate(c.who)
	if !allowed {
		return 0, nil, &apiError{status: http.StatusForbidden, message: "API rate limit exceeded for " + c.who.rateKey() + "."}
	}
	op, known := operations[id]
	if !known {
		return 0, nil, &apiError{status: http.StatusNotImplemented, violation: true, message: id + " is described, but hubsim does not simulate it"}
	}
	c.op = op
	if err := h.authorize(c); err != nil {
		return 0, nil, err
	}
	if len(c.body) > 0 && !json.Valid(c.body) {
		return 0, nil, &apiError{status: http.StatusBadRequest, violation: true, message: "Problems parsing JSON"}
	}
	if invalid != nil {
		return 0, nil, &apiError{status: http.StatusUnprocessableEntity, violation: true, message: "Invalid request.\n\n" + firstLine(invalid)}
	}
	return op.serve(h, c)
}

// firstLine is what an error of the validator says without the schema that it
// quotes at length.
func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}

// authorize checks that the caller is of the right kind, sees the repository
// and has the permission.
func (h *Hub) authorize(c *call) error {
	op, who := c.op, c.who
	switch {
	case op.who == anonymous:
		return nil
	case who.kind == anonymous:
		return &apiError{status: http.StatusUnauthorized, message: "Requires authentication"}
	case op.who == asApp && who.kind != asApp:
		return &apiError{status: http.StatusUnauthorized, message: "A JSON web token could not be decoded"}
	case op.who == asInstallation && who.kind == asApp:
		return notAccessible
	}
	if owner, ok := c.params["owner"]; ok {
		r, err := h.repo(owner + "/" + c.params["repo"])
		if err != nil || who.kind != asApp && !who.sees(r) {
			return notFound
		}
		c.repo = r
	}
	if who.kind == asInstallation && op.level != "" &&
		!slices.ContainsFunc(op.permissions, func(p string) bool { return who.may(p, op.level) }) {
		return notAccessible
	}
	return nil
}

// rate counts the calls of one owner in an hour.
type rate struct {
	used  int
	reset time.Time
}

func (h *Hub) rate(p *principal) *rate {
	key := p.rateKey()
	r := h.rates[key]
	if r == nil || !h.now().Before(r.reset) {
		r = &rate{reset: h.now().Add(rateWindow)}
		h.rates[key] = r
	}
	return r
}

// spend counts a call; false if there are none left.
func (h *Hub) spend(p *principal) bool {
	r := h.rate(p)
	if r.used >= h.opts.RateLimit {
		return false
	}
	r.used++
	return true
}

func (h *Hub) setRateHeader(header http.Header, c *call) {
	if c.rate.reset.IsZero() {
		return // not authenticated
	}
	header.Set("X-Ratelimit-Limit", strconv.Itoa(h.opts.RateLimit))
	header.Set("X-Ratelimit-Remaining", strconv.Itoa(h.opts.RateLimit-c.rate.used))
	header.Set("X-Ratelimit-Used", strconv.Itoa(c.rate.used))
	header.Set("X-Ratelimit-Reset", strconv.FormatInt(c.rate.reset.Unix(), 10))
	header.Set("X-Ratelimit-Resource", "core")
}

// page cuts the page that the query asks for out of a list and sets the Link
// header.
func page[T any](c *call, list []T) []T {
	per := queryInt(c.query, "per_page", perPageDefault, perPageMax)
	n := queryInt(c.query, "page", 1, 1<<20)
	last := max(1, (len(list)+per-1)/per)
	for _, rel := range []struct {
		name string
		page int
		on   bool
	}{{"prev", n - 1, n > 1}, {"next", n + 1, n < last}, {"last", last, n < last}, {"first", 1, n > 1}} {
		if rel.on {
			c.addLink(rel.name, "page", strconv.Itoa(rel.page))
		}
	}
	from := min((n-1)*per, len(list))
	return list[from:min(from+per, len(list))]
}

// addLink adds a link to the same list with one query parameter changed.
func (c *call) addLink(rel, name, value string) {
	q := url.Values{}
	for k, v := range c.query {
		q[k] = slices.Clone(v)
	}
	q.Set(name, value)
	c.link = append(c.link, fmt.Sprintf("<%s%s?%s>; rel=%q", c.base, c.url.EscapedPath(), q.Encode(), rel))
}

// queryInt reads a positive number; GitHub cuts numbers above the limit.
func queryInt(q url.Values, name string, other, most int) int {
	n, err := strconv.Atoi(q.Get(name))
	if err != nil || n < 1 {
		return other
	}
	return min(n, most)
}

// decodeJSON decodes any JSON value; numbers become float64.
func decodeJSON(data []byte) (any, error) {
	var v any
	if err := json.Unmarshal(data, &v); err != nil {
		return nil, fmt.Errorf("no JSON: %w", err)
	}
	return v, nil
}

// decode reads the body of a request, which the description has passed.
func (c *call) decode(v any) error {
	if len(c.body) == 0 {
		return nil
	}
	if err := json.Unmarshal(c.body, v); err != nil { // a number out of range
		return &apiError{status: http.StatusUnprocessableEntity, message: "Invalid request.\n\n" + err.Error(), violation: true}
	}
	return nil
}
