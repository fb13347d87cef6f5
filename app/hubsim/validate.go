package hubsim

import (
	"bytes"
	"compress/gzip"
	"context"
	_ "embed"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
)

//go:embed openapi/github.json.gz
var descriptionGz []byte

// description is GitHub's OpenAPI description and the paths in it.
type description struct {
	doc    *openapi3.T
	routes []*route
}

// route is one operation of the description.
type route struct {
	routers.Route
	segments []string // of the path template
}

// loadDescription reads the embedded description once for all hubs.
var loadDescription = sync.OnceValues(func() (*description, error) {
	zr, err := gzip.NewReader(bytes.NewReader(descriptionGz))
	if err != nil {
		return nil, fmt.Errorf("openapi description: %w", err)
	}
	data, err := io.ReadAll(zr)
	if err != nil {
		return nil, fmt.Errorf("openapi description: %w", err)
	}
	doc, err := openapi3.NewLoader().LoadFromData(data)
	if err != nil {
		return nil, fmt.Errorf("openapi description: %w", err)
	}
	mend(doc)
	return &description{doc: doc, routes: routesOf(doc)}, nil
})

// mend corrects the two places where the description is wrong: the head
// repository of a pull request is null once it was deleted, and an account in
// the list of installations is a user or an enterprise, never both at once.
func mend(doc *openapi3.T) {
	schemas := doc.Components.Schemas
	for _, name := range []string{"pull-request", "pull-request-simple"} {
		head := schemas[name].Value.Properties["head"].Value
		nullable := *head.Properties["repo"].Value
		nullable.Nullable = true
		head.Properties["repo"] = &openapi3.SchemaRef{Value: &nullable}
	}
	list := doc.Paths.Value("/app/installations").Get.Responses.Status(http.StatusOK)
	item := list.Value.Content.Get("application/json").Schema.Value.Items.Value
	item.Properties["account"] = schemas["installation"].Value.Properties["account"]
}

func routesOf(doc *openapi3.T) []*route {
	var list []*route
	for path, item := range doc.Paths.Map() {
		for method, op := range item.Operations() {
			list = append(list, &route{
				Route:    routers.Route{Spec: doc, Path: path, PathItem: item, Method: method, Operation: op},
				segments: strings.Split(path, "/"),
			})
		}
	}
	// More literal segments first: commits/{ref}/check-runs before commits/{ref}.
	slices.SortFunc(list, func(a, b *route) int {
		if d := b.literals() - a.literals(); d != 0 {
			return d
		}
		return strings.Compare(a.Method+a.Path, b.Method+b.Path)
	})
	return list
}

func (r *route) literals() int {
	n := 0
	for _, s := range r.segments {
		if !strings.HasPrefix(s, "{") {
			n++
		}
	}
	return n
}

// slashed are the path parameters whose values may contain slashes.
var slashed = []string{"{ref}", "{branch}", "{path}", "{basehead}"}

// find returns the operation of a request and its path parameters, nil if the
// description has none.
func (d *description) find(method, escapedPath string) (*route, map[string]string) {
	path := strings.Split(escapedPath, "/")
	for _, r := range d.routes {
		params := map[string]string{}
		if r.Method == method && match(r.segments, path, params) {
			return r, params
		}
	}
	return nil, nil
}

// match fills params from a path, segment by segment.
func match(template, path []string, params map[string]string) bool {
	if len(template) == 0 || len(path) == 0 {
		return len(template) == len(path)
	}
	name := template[0]
	if !strings.HasPrefix(name, "{") {
		return name == path[0] && match(template[1:], path[1:], params)
	}
	most := 1
	if slices.Contains(slashed, name) {
		most = len(path)
	}
	for n := 1; n <= most; n++ {
		value, err := url.PathUnescape(strings.Join(path[:n], "/"))
		if err == nil && value != "" && match(template[1:], path[n:], params) {
			params[strings.Trim(name, "{}")] = value
			return true
		}
	}
	return false
}

var filterOptions = &openapi3filter.Options{
	AuthenticationFunc: openapi3filter.NoopAuthenticationFunc, // the hub does that itself
	// GitHub ignores what it does not know; here it is a mistake of ours.
	RejectWhenRequestBodyNotSpecified: true,
	IncludeResponseStatus:             true,
	SkipSettingDefaults:               true,
}

// checkRequest holds a request, whose body was read, to the description.
func (r *route) checkRequest(req *http.Request, params map[string]string, body []byte) (*openapi3filter.RequestValidationInput, error) {
	clone := req.Clone(req.Context())
	clone.Body, clone.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	in := &openapi3filter.RequestValidationInput{Request: clone, PathParams: params, Route: &r.Route, Options: filterOptions}
	for name := range in.GetQueryParams() {
		if r.Operation.Parameters.GetByInAndName(openapi3.ParameterInQuery, name) == nil {
			return in, fmt.Errorf("query parameter %q is not described", name)
		}
	}
	return in, openapi3filter.ValidateRequest(req.Context(), in)
}

// checkResponse holds a response to the description. Errors that GitHub gives
// everywhere are not listed for each operation; they must have GitHub's shape.
func (d *description) checkResponse(in *openapi3filter.RequestValidationInput, status int, header http.Header, body []byte) error {
	if status >= 400 && in.Route.Operation.Responses.Status(status) == nil {
		return d.checkError(status, body)
	}
	out := &openapi3filter.ResponseValidationInput{RequestValidationInput: in, Status: status, Header: header, Options: filterOptions}
	return openapi3filter.ValidateResponse(context.Background(), out.SetBodyBytes(body))
}

func (d *description) checkError(status int, body []byte) error {
	schema := "basic-error"
	if status == http.StatusUnprocessableEntity {
		schema = "validation-error"
	}
	v, err := decodeJSON(body)
	if err != nil {
		return err
	}
	return d.doc.Components.Schemas[schema].Value.VisitJSON(v, openapi3.VisitAsResponse())
}
