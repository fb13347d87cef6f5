package handlers

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"regexp"
	"strings"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sync/semaphore"
)

const (
	// MaxBodyBytes is the largest delivery that GitHub sends.
	MaxBodyBytes = 25 << 20
	// maxBufferedBytes bounds the bodies that are in memory at once: a sender
	// needs no secret to make us read.
	maxBufferedBytes = 8 * MaxBodyBytes
	// bodyTimeout bounds how long one sender may take.
	bodyTimeout = 20 * time.Second
	// saveTimeout is what GitHub waits for an answer.
	saveTimeout = 10 * time.Second
	// minSecretBytes keeps a webhook secret from being guessed offline, from
	// one delivery that somebody has seen.
	minSecretBytes = 16
)

const (
	signatureHeader = "X-Hub-Signature-256"
	deliveryHeader  = "X-GitHub-Delivery"
	eventHeader     = "X-GitHub-Event"
)

var (
	guidShape  = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)
	eventShape = regexp.MustCompile(`^[a-z][a-z_]{0,63}$`)
)

// Intake receives webhook deliveries: an http.Handler for the one URL that the
// App's manifest names. It answers 202 only when the delivery is durable.
//
//	202  new, or the same delivery again
//	400  headers, JSON or shape do not fit: GitHub cannot have sent it so
//	401  X-Hub-Signature-256 is missing, malformed or wrong
//	405, 413, 415  not POST, over MaxBodyBytes, not application/json
//	409  the delivery's GUID is known with another body
//	503  not stored: deliver again
//
// The signature is checked before anything else of the body is looked at.
// GitHub signs neither GUID nor event name: the event name must fit the body,
// and events are hints (see Sessions). Events that nobody handles are stored
// as well. Nothing of a body is ever logged. The logger is taken from the
// request's context (zerolog.Ctx).
type Intake struct {
	secrets    [][]byte
	deliveries Deliveries
	now        func() time.Time
	buffered   *semaphore.Weighted
}

// NewIntake makes an intake that accepts signatures by any of the secrets:
// several while a secret is rotated. It refuses an empty list and secrets of
// less than 16 bytes, for an empty secret would let everybody in.
func NewIntake(deliveries Deliveries, secrets ...string) (*Intake, error) {
	if len(secrets) == 0 {
		return nil, errors.New("webhook secret: none is configured; set the one that the GitHub App has")
	}
	in := &Intake{deliveries: deliveries, now: time.Now, buffered: semaphore.NewWeighted(maxBufferedBytes)}
	for i, s := range secrets {
		if len(s) < minSecretBytes {
			return nil, fmt.Errorf("webhook secret %d of %d: has %d bytes, needs at least %d; make one with `openssl rand -hex 32`", i+1, len(secrets), len(s), minSecretBytes)
		}
		in.secrets = append(in.secrets, []byte(s))
	}
	return in, nil
}

// refusal is an answer other than 2xx: status and one line for the sender,
// which GitHub shows on the delivery's page.
type refusal struct {
	status int
	reason string
}

func (r *refusal) Error() string { return r.reason }

func refuse(status int, format string, args ...any) *refusal {
	return &refusal{status, fmt.Sprintf(format, args...)}
}

// ServeHTTP implements http.Handler.
func (in *Intake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	saved, err := in.receive(w, r)
	var no *refusal
	switch {
	case errors.As(err, &no):
		in.answerRefusal(w, r, no)
	case err != nil:
		zerolog.Ctx(r.Context()).Error().Err(err).Str("delivery", logged(r, deliveryHeader)).Msg("delivery not stored")
		w.Header().Set("Retry-After", "60")
		w.WriteHeader(http.StatusServiceUnavailable)
		fmt.Fprintln(w, "not stored, deliver again")
	case saved == Conflict:
		in.answerRefusal(w, r, refuse(http.StatusConflict, "this delivery GUID is known with another body"))
	case saved == Duplicate:
		w.WriteHeader(http.StatusAccepted)
		fmt.Fprintln(w, "known already")
	default:
		w.WriteHeader(http.StatusAccepted)
		fmt.Fprintln(w, "stored")
	}
}

func (in *Intake) answerRefusal(w http.ResponseWriter, r *http.Request, no *refusal) {
	zerolog.Ctx(r.Context()).Warn().Int("status", no.status).Str("reason", no.reason).
		Str("delivery", logged(r, deliveryHeader)).Str("event", logged(r, eventHeader)).Msg("delivery refused")
	if no.status == http.StatusMethodNotAllowed {
		w.Header().Set("Allow", http.MethodPost)
	}
	w.WriteHeader(no.status)
	fmt.Fprintln(w, no.reason)
}

// logged is a header as a log may hold it: only if it has its proper shape.
func logged(r *http.Request, header string) string {
	v := r.Header.Get(header)
	if guidShape.MatchString(v) || eventShape.MatchString(v) {
		return v
	}
	return ""
}

// receive checks a delivery and stores it. Its errors are refusals, or our own
// fault.
func (in *Intake) receive(w http.ResponseWriter, r *http.Request) (Saved, error) {
	if r.Method != http.MethodPost {
		return 0, refuse(http.StatusMethodNotAllowed, "deliveries are POSTed")
	}
	signature, err := parseSignature(r.Header)
	if err != nil {
		return 0, err
	}
	if err := checkContentType(r.Header); err != nil {
		return 0, err
	}
	body, release, err := in.readBody(w, r)
	if err != nil {
		return 0, err
	}
	defer release()
	if !in.signed(body, signature) {
		return 0, refuse(http.StatusUnauthorized, "%s does not match the body: the webhook secret differs", signatureHeader)
	}
	d, err := parseDelivery(r.Header, body)
	if err != nil {
		return 0, err
	}
	d.ReceivedAt = in.now()
	// The sender may hang up now: the delivery is worth keeping all the same.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), saveTimeout)
	defer cancel()
	return in.deliveries.SaveDelivery(ctx, d)
}

// parseSignature reads the one X-Hub-Signature-256 header: "sha256=" and 64
// lower-case hex digits, the form that GitHub sends. Another spelling of the
// same bytes is refused, so that a signature has one form only.
func parseSignature(h http.Header) ([]byte, error) {
	values := h.Values(signatureHeader)
	if len(values) != 1 {
		return nil, refuse(http.StatusUnauthorized, "%d %s headers, need one: set a webhook secret", len(values), signatureHeader)
	}
	digits, ok := strings.CutPrefix(values[0], "sha256=")
	if !ok || len(digits) != hex.EncodedLen(sha256.Size) || strings.Trim(digits, "0123456789abcdef") != "" {
		return nil, refuse(http.StatusUnauthorized, "%s is not sha256= and 64 lower-case hex digits", signatureHeader)
	}
	signature, err := hex.DecodeString(digits)
	if err != nil {
		return nil, refuse(http.StatusUnauthorized, "%s is not hexadecimal", signatureHeader)
	}
	return signature, nil
}

func checkContentType(h http.Header) error {
	mediaType, _, err := mime.ParseMediaType(h.Get("Content-Type"))
	if err != nil || mediaType != "application/json" {
		return refuse(http.StatusUnsupportedMediaType, "content type is not application/json: choose it in the App's webhook settings")
	}
	if e := h.Get("Content-Encoding"); e != "" && e != "identity" {
		return refuse(http.StatusUnsupportedMediaType, "the body must not be encoded")
	}
	return nil
}

var (
	errTooLarge = refuse(http.StatusRequestEntityTooLarge, "the body is larger than %d bytes", MaxBodyBytes)
	errBusy     = errors.New("too many deliveries at once")
)

// meter accounts for the bytes that have arrived, not for those announced:
// announcing costs a sender nothing.
type meter struct {
	from     io.Reader
	buffered *semaphore.Weighted
	held     int64
}

func (m *meter) Read(p []byte) (int, error) {
	n, err := m.from.Read(p)
	if !m.buffered.TryAcquire(int64(n)) {
		return 0, errBusy
	}
	m.held += int64(n)
	return n, err
}

func (m *meter) release() { m.buffered.Release(m.held) }

// readBody reads the whole body, within the bounds of size, time and memory.
// The memory is accounted for until release is called.
func (in *Intake) readBody(w http.ResponseWriter, r *http.Request) (body []byte, release func(), err error) {
	if r.ContentLength > MaxBodyBytes {
		return nil, nil, errTooLarge
	}
	// Not every ResponseWriter has deadlines; the server's own apply then.
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyTimeout))
	m := &meter{from: http.MaxBytesReader(w, r.Body, MaxBodyBytes), buffered: in.buffered}
	body, err = io.ReadAll(m)
	if err == nil {
		return body, m.release, nil
	}
	m.release()
	var over *http.MaxBytesError
	switch {
	case errors.As(err, &over):
		return nil, nil, errTooLarge
	case errors.Is(err, errBusy):
		return nil, nil, err
	}
	return nil, nil, refuse(http.StatusBadRequest, "the body could not be read to its end")
}

// signed compares in constant time with the signature by each secret.
func (in *Intake) signed(body, signature []byte) bool {
	ok := false
	for _, s := range in.secrets {
		mac := hmac.New(sha256.New, s)
		mac.Write(body)
		if hmac.Equal(mac.Sum(nil), signature) {
			ok = true
		}
	}
	return ok
}
