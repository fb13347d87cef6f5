package hubsim

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v4"
)

// GitHub's limits.
const (
	maxJWTLife = 10 * time.Minute
	tokenLife  = time.Hour
	// maxTokenRepos is how many repositories one token can be narrowed to.
	maxTokenRepos = 500
)

// kind tells who a request comes from.
type kind int

const (
	anonymous kind = iota
	asApp          // with a JSON web token
	asInstallation
	asUser
)

// principal is who a request comes from, and what they may.
type principal struct {
	kind         kind
	installation *installation     // of an installation token
	permissions  map[string]string // of an installation token
	repos        map[int64]bool    // of a narrowed installation token, nil if not narrowed
	user         *account
	expires      time.Time // zero: never
}

// rateKey names the owner of a rate limit.
func (p *principal) rateKey() string {
	switch p.kind {
	case asApp:
		return "app"
	case asInstallation:
		return fmt.Sprintf("installation ID %d", p.installation.id)
	case asUser:
		return "user ID " + strconv.FormatInt(p.user.id, 10)
	default:
		return "127.0.0.1"
	}
}

// sees tells whether the principal can see that a repository exists.
func (p *principal) sees(r *repository) bool {
	switch p.kind {
	case asInstallation:
		return p.installation.covers(r) && (p.repos == nil || p.repos[r.id])
	case asUser:
		return p.user == r.owner || !slices.Contains([]string{"", "none"}, r.roles[strings.ToLower(p.user.login)])
	default:
		return false
	}
}

var levels = []string{"", "read", "write", "admin"}

// may tells whether an installation token has a permission at a level.
func (p *principal) may(permission, level string) bool {
	return slices.Index(levels, p.permissions[permission]) >= slices.Index(levels, level)
}

// authenticate finds out who a request comes from. Callers hold mu.
func (h *Hub) authenticate(r *http.Request) (*principal, error) {
	auth := r.Header.Get("Authorization")
	if auth == "" {
		return &principal{}, nil
	}
	scheme, credential, _ := strings.Cut(auth, " ")
	switch strings.ToLower(scheme) {
	case "basic":
		_, password, ok := parseBasic(credential)
		if !ok {
			return nil, badCredentials
		}
		return h.tokenOwner(password)
	case "bearer", "token":
		if strings.Count(credential, ".") == 2 {
			return h.authenticateApp(credential)
		}
		return h.tokenOwner(credential)
	default:
		return nil, badCredentials
	}
}

func parseBasic(credential string) (user, password string, ok bool) {
	raw, err := base64.StdEncoding.DecodeString(credential)
	if err != nil {
		return "", "", false
	}
	return strings.Cut(string(raw), ":")
}

var badCredentials = &apiError{status: http.StatusUnauthorized, message: "Bad credentials"}

// tokenOwner finds the owner of a token that is known and not expired.
func (h *Hub) tokenOwner(token string) (*principal, error) {
	p := h.tokens[token]
	if p == nil || !p.expires.IsZero() && !h.now().Before(p.expires) {
		return nil, badCredentials
	}
	return p, nil
}

// authenticateApp checks a JSON web token of the app: RS256, our issuer, issued
// in the past, and not good for more than ten minutes from now.
func (h *Hub) authenticateApp(token string) (*principal, error) {
	undecodable := &apiError{status: http.StatusUnauthorized, message: "A JSON web token could not be decoded"}
	parser := jwt.NewParser(jwt.WithValidMethods([]string{"RS256"}), jwt.WithoutClaimsValidation(), jwt.WithJSONNumber())
	claims := jwt.MapClaims{}
	if _, err := parser.ParseWithClaims(token, claims, func(*jwt.Token) (any, error) { return &h.appKey.PublicKey, nil }); err != nil {
		return nil, undecodable
	}
	issuer := fmt.Sprint(claims["iss"])
	if issuer != strconv.FormatInt(h.opts.AppID, 10) && issuer != h.clientID() {
		return nil, &apiError{status: http.StatusUnauthorized, message: "'Issuer' claim ('iss') must be an Integer"}
	}
	iat, err := claimTime(claims, "iat")
	if err != nil || iat.After(h.now()) {
		return nil, &apiError{status: http.StatusUnauthorized, message: "'Issued at' claim ('iat') must be an Integer representing the time that the assertion was issued"}
	}
	exp, err := claimTime(claims, "exp")
	if err != nil || !h.now().Before(exp) {
		return nil, &apiError{status: http.StatusUnauthorized, message: "'Expiration time' claim ('exp') must be a numeric value representing the future time at which the assertion expires"}
	}
	if exp.After(h.now().Add(maxJWTLife)) {
		return nil, &apiError{status: http.StatusUnauthorized, message: "'Expiration time' claim ('exp') is too far in the future"}
	}
	return &principal{kind: asApp}, nil
}

func claimTime(claims jwt.MapClaims, name string) (time.Time, error) {
	n, ok := claims[name].(json.Number)
	if !ok {
		return time.Time{}, fmt.Errorf("claim %s is no number", name)
	}
	seconds, err := n.Int64()
	return time.Unix(seconds, 0), err
}

// UserToken makes a personal access token, as a person would use.
func (h *Hub) UserToken(login string) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	token := "ghp_" + rand.Text()
	h.tokens[token] = &principal{kind: asUser, user: h.account(login)}
	return token
}

// tokenRequest is the body of a request for an installation token.
type tokenRequest struct {
	Repositories  []string          `json:"repositories"`
	RepositoryIDs []int64           `json:"repository_ids"`
	Permissions   map[string]string `json:"permissions"`
}

// newToken makes an installation token, narrowed as asked.
func (h *Hub) newToken(i *installation, req tokenRequest) (string, *principal, error) {
	p := &principal{kind: asInstallation, installation: i, permissions: maps.Clone(i.permissions), expires: h.now().Add(tokenLife)}
	if len(req.Permissions) > 0 {
		whole := &principal{permissions: i.permissions}
		for name, level := range req.Permissions {
			if !whole.may(name, level) {
				return "", nil, unprocessable("The permissions requested are not granted to this installation.")
			}
		}
		p.permissions = maps.Clone(req.Permissions)
		p.permissions["metadata"] = "read" // always included
	}
	if err := h.narrow(p, req); err != nil {
		return "", nil, err
	}
	token := "ghs_" + rand.Text() + rand.Text()[:10] // GitHub's have 36 characters too
	h.tokens[token] = p
	return token, p, nil
}

// narrow restricts a token to the repositories asked for.
func (h *Hub) narrow(p *principal, req tokenRequest) error {
	if len(req.Repositories)+len(req.RepositoryIDs) == 0 {
		return nil
	}
	if len(req.Repositories)+len(req.RepositoryIDs) > maxTokenRepos {
		return unprocessable(fmt.Sprintf("A token can be narrowed to %d repositories.", maxTokenRepos))
	}
	p.repos = map[int64]bool{}
	for _, r := range h.installedRepos(p.installation) {
		byName := slices.ContainsFunc(req.Repositories, func(n string) bool { return strings.EqualFold(n, r.name) })
		if byName || slices.Contains(req.RepositoryIDs, r.id) {
			p.repos[r.id] = true
		}
	}
	if len(p.repos) < len(req.Repositories)+len(req.RepositoryIDs) {
		return unprocessable("There is at least one repository that does not exist or is not accessible to the parent installation.")
	}
	return nil
}
