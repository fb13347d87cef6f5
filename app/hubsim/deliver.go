package hubsim

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha1" // X-Hub-Signature, which GitHub still sends
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"
)

// Limits of a delivery.
const (
	deliveryTimeout     = 10 * time.Second // GitHub's
	deliveryResponseMax = 64 << 10         // bytes of the answer that are kept
)

// alwaysSent are the events that an app gets without subscribing.
var alwaysSent = []string{"check_run", "check_suite", "installation", "installation_repositories", "ping"}

type hookConfig struct{ url, secret string }

// Delivery is one attempt to deliver a webhook.
type Delivery struct {
	ID             int64
	GUID           string // the same for every redelivery
	Event, Action  string
	InstallationID int64 // 0 if none
	RepositoryID   int64 // 0 if none
	Redelivery     bool
	DeliveredAt    time.Time // when it was made
	Attempted      bool      // false while it waits in the queue
	Duration       time.Duration
	StatusCode     int    // of the answer; 0 if there was none
	Status         string // "OK", or what went wrong
	URL            string
	RequestHeader  http.Header
	Body           []byte
	ResponseHeader http.Header
	ResponseBody   []byte
}

type delivery struct{ Delivery }

// object is a JSON object to be.
type object = map[string]any

// send puts a webhook into the queue, if the app is installed there and gets
// such events. payload is completed with what every event carries. Callers
// hold mu.
func (h *Hub) send(event, action string, inst *installation, r *repository, sender *account, payload object) {
	h.touch()
	subscribed := slices.Contains(h.opts.Events, event) || slices.Contains(alwaysSent, event)
	if inst == nil || !subscribed {
		return
	}
	payload = maps.Clone(payload)
	payload["action"] = action
	payload["sender"] = h.userJSON(sender)
	d := &delivery{Delivery{GUID: uuid.NewString(), Event: event, Action: action, InstallationID: inst.id}}
	if r != nil {
		d.RepositoryID = r.id
		payload["repository"] = h.repoJSON(r)
		payload["installation"] = object{"id": inst.id, "node_id": nodeID("Installation", inst.id)}
		if r.owner.org {
			payload["organization"] = h.orgJSON(r.owner)
		}
	}
	d.Body = mustJSON(payload)
	h.enqueue(d)
}

// mustJSON encodes what the hub made itself from strings, numbers and the like.
func mustJSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("hubsim: %v", err)) // a channel or function in a payload: our own mistake
	}
	return b
}

func (h *Hub) enqueue(d *delivery) {
	d.ID, d.DeliveredAt, d.Status = h.newID(), h.now(), "pending"
	h.deliveries = append(h.deliveries, d)
	h.pending = append(h.pending, d)
	h.touch()
}

// deliver takes deliveries from the queue, in order, until ctx ends.
func (h *Hub) deliver(ctx context.Context) {
	defer close(h.stopped)
	client := &http.Client{Transport: h.opts.Transport, Timeout: deliveryTimeout}
	for {
		d, hook, changed := h.nextDelivery()
		if d != nil {
			result := attempt(ctx, client, h.opts.AppID, hook, d)
			h.mu.Lock()
			h.pending = h.pending[1:]
			d.Delivery = result
			h.touch()
			h.mu.Unlock()
			continue
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// nextDelivery returns a copy of the first delivery's place in the queue; it
// stays there until it was attempted, so that Flush sees it.
func (h *Hub) nextDelivery() (*delivery, hookConfig, <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.pending) == 0 {
		return nil, hookConfig{}, h.changed
	}
	return h.pending[0], h.hook, nil
}

// attempt posts a delivery and returns it with the outcome. While it is in the
// queue only the worker changes it, so reading it needs no lock.
func attempt(ctx context.Context, client *http.Client, appID int64, hook hookConfig, queued *delivery) Delivery {
	d := queued.Delivery
	d.Attempted, d.URL = true, hook.url
	d.RequestHeader = deliveryHeader(d, appID, hook.secret)
	if hook.url == "" {
		d.Status = "no webhook URL"
		return d
	}
	started := time.Now()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, hook.url, bytes.NewReader(d.Body))
	if err != nil {
		d.Status = "invalid webhook URL"
		return d
	}
	req.Header = d.RequestHeader.Clone()
	resp, err := client.Do(req)
	if d.Duration = time.Since(started); err != nil {
		d.Status = "failed to connect to host"
		return d
	}
	defer resp.Body.Close()
	d.ResponseBody, _ = io.ReadAll(io.LimitReader(resp.Body, deliveryResponseMax)) // a broken answer still has a status
	d.StatusCode, d.ResponseHeader, d.Status = resp.StatusCode, resp.Header, "OK"
	if !d.succeeded() {
		d.Status = "Invalid HTTP Response: " + strconv.Itoa(resp.StatusCode)
	}
	return d
}

func (d Delivery) succeeded() bool { return d.StatusCode >= 200 && d.StatusCode < 400 }

func deliveryHeader(d Delivery, appID int64, secret string) http.Header {
	return http.Header{
		"Accept":                                 {"*/*"},
		"Content-Type":                           {"application/json"},
		"User-Agent":                             {"GitHub-Hookshot/hubsim"},
		"X-Github-Delivery":                      {d.GUID},
		"X-Github-Event":                         {d.Event},
		"X-Github-Hook-Id":                       {strconv.FormatInt(appID, 10)},
		"X-Github-Hook-Installation-Target-Id":   {strconv.FormatInt(appID, 10)},
		"X-Github-Hook-Installation-Target-Type": {"integration"},
		"X-Hub-Signature":                        {"sha1=" + sign(sha1.New, secret, d.Body)},
		"X-Hub-Signature-256":                    {"sha256=" + sign(sha256.New, secret, d.Body)},
	}
}

func sign(h func() hash.Hash, secret string, body []byte) string {
	m := hmac.New(h, []byte(secret))
	m.Write(body)
	return hex.EncodeToString(m.Sum(nil))
}

// Deliveries lists all attempts to deliver a webhook, oldest first.
func (h *Hub) Deliveries() []Delivery {
	h.mu.Lock()
	defer h.mu.Unlock()
	list := make([]Delivery, len(h.deliveries))
	for i, d := range h.deliveries {
		list[i] = d.Delivery
	}
	return list
}

// Flush waits until every delivery that is in the queue now was attempted.
func (h *Hub) Flush(ctx context.Context) error {
	h.mu.Lock()
	waiting := slices.Clone(h.pending)
	h.mu.Unlock()
	return h.WaitFor(ctx, func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return !slices.ContainsFunc(waiting, func(d *delivery) bool { return !d.Attempted })
	})
}

// Redeliver sends a delivery again, with the same GUID and body, as the button
// on GitHub does. It returns the new attempt's ID.
func (h *Hub) Redeliver(id int64) (int64, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	old := h.delivery(id)
	if old == nil {
		return 0, fmt.Errorf("delivery %d: %w", id, ErrNotFound)
	}
	return h.redeliver(old), nil
}

func (h *Hub) delivery(id int64) *delivery {
	for _, d := range h.deliveries {
		if d.ID == id {
			return d
		}
	}
	return nil
}

func (h *Hub) redeliver(old *delivery) int64 {
	d := &delivery{Delivery{
		GUID: old.GUID, Event: old.Event, Action: old.Action, Body: old.Body, Redelivery: true,
		InstallationID: old.InstallationID, RepositoryID: old.RepositoryID,
	}}
	h.enqueue(d)
	return d.ID
}

// SendRaw delivers a body of the caller's making under an event name: for what
// GitHub may send that hubsim has no scene for.
func (h *Hub) SendRaw(event string, body []byte) (id int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	d := &delivery{Delivery{GUID: uuid.NewString(), Event: event, Body: slices.Clone(body)}}
	h.enqueue(d)
	return d.ID
}
