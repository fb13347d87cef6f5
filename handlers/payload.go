package handlers

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"

	"underwrite/attest"
)

var (
	actionShape = regexp.MustCompile(`^[a-z][a-z_]{0,63}$`)
	repoShape   = regexp.MustCompile(`^[A-Za-z0-9](?:[A-Za-z0-9_-]{0,99})/[A-Za-z0-9._-]{1,100}$`)
)

// shapes lists, for the events that GitHub sends to this App, the objects that
// their bodies always have. An event name is not signed: with the wrong body
// it is refused. Of other events nothing is expected.
var shapes = map[string][]string{
	"pull_request":              {"action", "number", "pull_request", "repository"},
	"issue_comment":             {"action", "comment", "issue", "repository"},
	"merge_group":               {"action", "merge_group", "repository"},
	"check_run":                 {"action", "check_run", "repository"},
	"check_suite":               {"action", "check_suite", "repository"},
	"installation":              {"action", "installation"},
	"installation_repositories": {"action", "installation", "repository_selection"},
	"ping":                      {"zen", "hook_id"},
}

// parseDelivery reads the headers and those members of a verified body that
// are kept beside it. Values of other events that do not fit are left empty.
func parseDelivery(h http.Header, body []byte) (Delivery, error) {
	d := Delivery{GUID: h.Get(deliveryHeader), Event: h.Get(eventHeader), Body: body}
	if len(h.Values(deliveryHeader)) != 1 || !guidShape.MatchString(d.GUID) {
		return Delivery{}, refuse(http.StatusBadRequest, "%s is not one lower-case GUID", deliveryHeader)
	}
	if len(h.Values(eventHeader)) != 1 || !eventShape.MatchString(d.Event) {
		return Delivery{}, refuse(http.StatusBadRequest, "%s is not one event name", eventHeader)
	}
	top, err := members(body)
	if err != nil {
		return Delivery{}, refuse(http.StatusBadRequest, "the body is not a JSON object: %v", err)
	}
	for _, name := range shapes[d.Event] {
		if isNull(top[name]) {
			return Delivery{}, refuse(http.StatusBadRequest, "a body without %s is no %s event", name, d.Event)
		}
	}
	if err := d.fill(top); err != nil && shapes[d.Event] != nil {
		return Delivery{}, refuse(http.StatusBadRequest, "%s event: %s", d.Event, strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	sum := sha256.Sum256(body)
	d.BodySHA256 = hex.EncodeToString(sum[:])
	return d, nil
}

// fill sets what the body names. It tries all members and joins their errors.
func (d *Delivery) fill(top map[string]json.RawMessage) error {
	var errs []error
	errs = append(errs, text(top["action"], actionShape, &d.Action))
	errs = append(errs, nested(top["repository"], "full_name", func(v json.RawMessage) error { return repo(v, &d.Repo) }))
	errs = append(errs, nested(top["installation"], "id", func(v json.RawMessage) error { return positive(v, &d.InstallationID) }))
	errs = append(errs, d.fillNumber(top))
	return errors.Join(errs...)
}

// fillNumber reads the pull request's number, of an issue comment too: it says
// which conversation was commented.
func (d *Delivery) fillNumber(top map[string]json.RawMessage) error {
	switch d.Event {
	case "pull_request":
		inner := int64(0)
		err := errors.Join(positive(top["number"], &d.Number),
			nested(top["pull_request"], "number", func(v json.RawMessage) error { return positive(v, &inner) }))
		if err == nil && inner != d.Number {
			return errors.New("number and pull_request.number differ")
		}
		return err
	case "issue_comment":
		return nested(top["issue"], "number", func(v json.RawMessage) error { return positive(v, &d.Number) })
	}
	return nil
}

// members splits a JSON object into its members, by exact name. A name that
// occurs twice is refused: two readers could see two values.
func members(object []byte) (map[string]json.RawMessage, error) {
	if err := json.Unmarshal(object, new(json.RawMessage)); err != nil {
		return nil, syntax(err)
	}
	return split(object)
}

// split is members for what is known to be valid JSON.
func split(object []byte) (map[string]json.RawMessage, error) {
	dec := json.NewDecoder(bytes.NewReader(object))
	if open, err := dec.Token(); err != nil || open != json.Delim('{') {
		return nil, errors.New("not an object")
	}
	found := map[string]json.RawMessage{}
	for dec.More() {
		name, err := dec.Token()
		if err != nil {
			return nil, syntax(err)
		}
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return nil, syntax(err)
		}
		key, _ := name.(string) // always a string, by the decoder's contract
		if _, twice := found[key]; twice {
			return nil, errors.New("a member occurs twice")
		}
		found[key] = value
	}
	return found, nil
}

// syntax says where a body breaks without repeating any of it.
func syntax(err error) error {
	var s *json.SyntaxError
	if errors.As(err, &s) {
		return fmt.Errorf("syntax error near byte %d", s.Offset)
	}
	return errors.New("it ends early")
}

func isNull(v json.RawMessage) bool { return len(v) == 0 || string(v) == "null" }

// nested hands the named member of an object to f. An absent object or null is
// no error, an object without the member is.
func nested(object json.RawMessage, name string, f func(json.RawMessage) error) error {
	if isNull(object) {
		return nil
	}
	m, err := split(object) // the whole body is valid
	if err == nil && isNull(m[name]) {
		err = errors.New("missing")
	}
	if err == nil {
		err = f(m[name])
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

func text(v json.RawMessage, shape *regexp.Regexp, to *string) error {
	if isNull(v) {
		return nil
	}
	var s string
	if json.Unmarshal(v, &s) != nil || !shape.MatchString(s) {
		return errors.New("malformed text")
	}
	*to = s
	return nil
}

func repo(v json.RawMessage, to *string) error {
	if err := text(v, repoShape, to); err != nil {
		return err
	}
	if _, name, _ := strings.Cut(*to, "/"); name == "." || name == ".." {
		*to = ""
		return errors.New("malformed name")
	}
	return nil
}

// positive reads an integer from 1 to 2^53-1, written as one.
func positive(v json.RawMessage, to *int64) error {
	var n int64
	if json.Unmarshal(v, &n) != nil || n < 1 || n > attest.MaxInteger {
		return errors.New("not a positive integer")
	}
	*to = n
	return nil
}
