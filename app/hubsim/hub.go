package hubsim

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

// Defaults of Options.
const (
	DefaultAppID     = 100001
	DefaultAppSlug   = "underwrite"
	DefaultRateLimit = 15000 // requests an hour, of an installation in an enterprise
)

// DefaultPermissions are what the app asks for.
var DefaultPermissions = map[string]string{
	"metadata": "read", "contents": "read", "pull_requests": "read", "issues": "read",
	"merge_queues": "read", "checks": "write",
}

// DefaultEvents are the events that the app subscribes to. check_run,
// check_suite and installation come without a subscription.
var DefaultEvents = []string{"pull_request", "issue_comment", "merge_group"}

// Options say what a Hub is made of. The zero value is a working hub.
type Options struct {
	// Dir holds the bare repositories: an empty directory, or one to be made.
	// Empty: a temporary directory that Close removes.
	Dir string
	// BaseURL is put in front of the URLs in responses when the Hub is mounted
	// as a handler somewhere else. Start overrides it.
	BaseURL string

	AppKey      *rsa.PrivateKey   // of the app; a new one if nil
	AppID       int64             // DefaultAppID if 0
	AppSlug     string            // DefaultAppSlug if empty
	Permissions map[string]string // of the app and its installations; DefaultPermissions if nil
	Events      []string          // DefaultEvents if nil
	// RequestSuites makes every push send check_suite.requested, which GitHub
	// does and the app has no use for.
	RequestSuites bool

	// WebhookURL receives the deliveries; SetWebhookURL sets it later. While it
	// is empty deliveries are recorded as failed, to be redelivered.
	WebhookURL string
	// WebhookSecret signs the deliveries. Empty: a random one.
	WebhookSecret string
	// Transport carries the deliveries: the place to lose, delay, repeat or
	// change them. http.DefaultTransport's settings if nil.
	Transport http.RoundTripper
	// Middleware wraps everything that is served: the place to inject faults.
	Middleware func(http.Handler) http.Handler

	// Now is the hub's clock; time.Now if nil.
	Now func() time.Time
	// RateLimit is the number of API calls an hour for one token's owner;
	// DefaultRateLimit if 0.
	RateLimit int
}

// Hub is a simulated GitHub with one GitHub App. All methods may be called
// from several goroutines.
type Hub struct {
	opts    Options
	dir     string
	tempDir bool
	appKey  *rsa.PrivateKey
	created time.Time
	api     *description
	handler http.Handler

	server *http.Server // set by Start
	served chan struct{}

	stop    context.CancelFunc // ends the delivery worker
	stopped chan struct{}      // closed when it has ended

	mu      sync.Mutex // guards all below; held while an API call is answered
	base    string     // URL without a final slash
	changed chan struct{}
	lastID  int64
	commits int64 // made so far: commit dates count up with it

	accounts      map[string]*account // by lower-case login
	repos         map[string]*repository
	installations map[int64]*installation
	tokens        map[string]*principal
	rates         map[string]*rate
	hook          hookConfig
	deliveries    []*delivery // oldest first
	pending       []*delivery
	runLog        []CheckRun // every version of every check run, in order

	violationsMu sync.Mutex
	violations   []string
}

// New makes an empty hub: no accounts, no repositories. Close it.
func New(o Options) (*Hub, error) {
	withDefaults(&o)
	api, err := loadDescription()
	if err != nil {
		return nil, err
	}
	key := o.AppKey
	if key == nil {
		if key, err = rsa.GenerateKey(rand.Reader, 2048); err != nil {
			return nil, fmt.Errorf("app key: %w", err)
		}
	}
	dir, temp := o.Dir, o.Dir == ""
	if temp {
		if dir, err = os.MkdirTemp("", "hubsim-"); err != nil {
			return nil, fmt.Errorf("repository directory: %w", err)
		}
	}
	if dir, err = filepath.Abs(dir); err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	if err != nil {
		return nil, fmt.Errorf("repository directory: %w", err)
	}
	h := &Hub{
		opts: o, dir: dir, tempDir: temp, appKey: key, created: o.Now(), api: api, base: o.BaseURL,
		changed: make(chan struct{}), stopped: make(chan struct{}), lastID: 1000,
		accounts: map[string]*account{}, repos: map[string]*repository{},
		installations: map[int64]*installation{}, tokens: map[string]*principal{}, rates: map[string]*rate{},
		hook: hookConfig{url: o.WebhookURL, secret: o.WebhookSecret},
	}
	h.handler = http.HandlerFunc(h.serve)
	if o.Middleware != nil {
		h.handler = o.Middleware(h.handler)
	}
	ctx, cancel := context.WithCancel(context.Background())
	h.stop = cancel
	go h.deliver(ctx)
	return h, nil
}

func withDefaults(o *Options) {
	if o.AppID == 0 {
		o.AppID = DefaultAppID
	}
	if o.AppSlug == "" {
		o.AppSlug = DefaultAppSlug
	}
	if o.Permissions == nil {
		o.Permissions = DefaultPermissions
	}
	o.Permissions = maps.Clone(o.Permissions)
	if o.Events == nil {
		o.Events = DefaultEvents
	}
	o.Events = slices.Clone(o.Events)
	if o.BaseURL == "" {
		o.BaseURL = "http://hubsim.invalid"
	}
	if o.WebhookSecret == "" {
		o.WebhookSecret = rand.Text()
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.RateLimit == 0 {
		o.RateLimit = DefaultRateLimit
	}
}

// Start serves the hub on a free port of 127.0.0.1 until Close.
func (h *Hub) Start() error {
	if h.server != nil {
		return errors.New("hub is started already")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	h.mu.Lock()
	h.base = "http://" + l.Addr().String()
	h.mu.Unlock()
	h.server = &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
	h.served = make(chan struct{})
	go func() {
		defer close(h.served)
		_ = h.server.Serve(l) // always http.ErrServerClosed, after Close
	}()
	return nil
}

// Close stops serving and delivering. Deliveries that did not leave yet are
// dropped: Flush first if they matter. A temporary directory is removed.
func (h *Hub) Close() error {
	h.stop()
	<-h.stopped
	var err error
	if h.server != nil {
		err = h.server.Close()
		<-h.served
	}
	if h.tempDir {
		err = errors.Join(err, os.RemoveAll(h.dir))
	}
	return err
}

// ServeHTTP serves the REST API (at the root, and under /api/v3 as GitHub
// Enterprise does) and git repositories at /OWNER/NAME.git.
func (h *Hub) ServeHTTP(w http.ResponseWriter, r *http.Request) { h.handler.ServeHTTP(w, r) }

// URL is the API's base URL, without a final slash. Repositories are cloned
// from URL/OWNER/NAME.git.
func (h *Hub) URL() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.base
}

// AppID is the app's number, the issuer of its JSON web tokens.
func (h *Hub) AppID() int64 { return h.opts.AppID }

// AppPrivateKeyPEM is the app's RSA key in PKCS #1 PEM form, as GitHub hands it
// out when a key is generated.
func (h *Hub) AppPrivateKeyPEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(h.appKey)})
}

// WebhookSecret is the key of the deliveries' signatures.
func (h *Hub) WebhookSecret() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.hook.secret
}

// SetWebhookURL says where deliveries go from now on.
func (h *Hub) SetWebhookURL(url string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.hook.url = url
}

// WaitFor waits until cond holds. cond is asked at once and after each change
// of the hub's state, never under a lock, so it may call the hub's methods. The
// error is that of ctx.
func (h *Hub) WaitFor(ctx context.Context, cond func() bool) error {
	for {
		h.mu.Lock()
		changed := h.changed
		h.mu.Unlock()
		if cond() {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// touch wakes everybody in WaitFor. Callers hold mu.
func (h *Hub) touch() {
	close(h.changed)
	h.changed = make(chan struct{})
}

// Violations lists what was asked of the hub, or answered by it, outside of
// GitHub's description and rules, oldest first.
func (h *Hub) Violations() []string {
	h.violationsMu.Lock()
	defer h.violationsMu.Unlock()
	return slices.Clone(h.violations)
}

func (h *Hub) violation(format string, args ...any) {
	h.violationsMu.Lock()
	defer h.violationsMu.Unlock()
	h.violations = append(h.violations, fmt.Sprintf(format, args...))
}

// newID gives the next of the hub's numbers; they rise over all kinds of
// things, as on GitHub. Callers hold mu.
func (h *Hub) newID() int64 {
	h.lastID++
	return h.lastID
}

func (h *Hub) now() time.Time { return h.opts.Now().UTC() }

func randomHex(bytes int) string {
	b := make([]byte, bytes)
	_, _ = rand.Read(b) // never fails, by its contract
	return hex.EncodeToString(b)
}
