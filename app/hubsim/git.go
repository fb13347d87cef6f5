package hubsim

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/cgi"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
)

// gitPath splits /OWNER/NAME.git/REST.
func gitPath(path string) (repo, rest string, ok bool) {
	parts := strings.SplitN(strings.TrimPrefix(path, "/"), "/", 3)
	if len(parts) != 3 || !strings.HasSuffix(parts[1], ".git") {
		return "", "", false
	}
	return parts[0] + "/" + strings.TrimSuffix(parts[1], ".git"), "/" + parts[2], true
}

// gitBackend is the path of git's own CGI program.
var gitBackend = sync.OnceValues(func() (string, error) {
	cmd := exec.Command("git", "--exec-path")
	cmd.Env = gitEnv()
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("git --exec-path: %w", err)
	}
	return filepath.Join(strings.TrimSpace(string(out)), "git-http-backend"), nil
})

// serveGit serves a fetch: a token with contents:read that sees the repository,
// and nothing but the two requests that a fetch makes.
func (h *Hub) serveGit(w http.ResponseWriter, r *http.Request, name, rest string) {
	dir, err := h.authorizeGit(r, name)
	if err != nil {
		refuseGit(w, err)
		return
	}
	info := r.Method == http.MethodGet && rest == "/info/refs" && r.URL.Query().Get("service") == "git-upload-pack"
	if !info && !(r.Method == http.MethodPost && rest == "/git-upload-pack") {
		refuseGit(w, &apiError{status: http.StatusForbidden, message: "Write access to repository not granted."})
		return
	}
	backend, err := gitBackend()
	if err != nil {
		refuseGit(w, &apiError{status: http.StatusInternalServerError, message: err.Error()})
		return
	}
	if r.ContentLength < 0 { // CGI needs a length
		if err := buffer(r); err != nil {
			refuseGit(w, &apiError{status: http.StatusRequestEntityTooLarge, message: err.Error()})
			return
		}
	}
	// The program learns of the request only what a fetch needs: no credential.
	clean := r.Clone(r.Context())
	clean.URL.Path, clean.URL.RawPath = "/"+filepath.Base(string(dir))+rest, ""
	clean.Header = http.Header{}
	for _, k := range []string{"Content-Type", "Content-Encoding", "Git-Protocol", "Accept-Encoding"} {
		if v := r.Header.Get(k); v != "" {
			clean.Header.Set(k, v)
		}
	}
	(&cgi.Handler{
		Path: backend, Root: "/", Dir: "/",
		Env: append(gitEnv(), "GIT_PROJECT_ROOT="+filepath.Dir(string(dir)), "GIT_HTTP_EXPORT_ALL=1"),
		// What git says to stderr is about the client's going away; the client
		// gets its own errors over the protocol.
		Stderr: io.Discard,
	}).ServeHTTP(w, clean)
}

// maxNegotiation bounds a fetch request sent in chunks: what the client wants
// and has, a line of 50 bytes each.
const maxNegotiation = 64 << 20

// buffer reads a body of unknown length.
func buffer(r *http.Request) error {
	body, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, maxNegotiation))
	if err != nil {
		return err
	}
	r.Body, r.ContentLength, r.TransferEncoding = io.NopCloser(bytes.NewReader(body)), int64(len(body)), nil
	return nil
}

// authorizeGit returns the directory of a repository that the request may read.
func (h *Hub) authorizeGit(r *http.Request, name string) (gitDir, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	who, err := h.authenticate(r)
	if err != nil {
		return "", err
	}
	if who.kind == anonymous || who.kind == asApp {
		return "", &apiError{status: http.StatusUnauthorized, message: "Authentication required"}
	}
	repo, err := h.repo(name)
	if err != nil || !who.sees(repo) {
		return "", &apiError{status: http.StatusNotFound, message: "Repository not found."}
	}
	if who.kind == asInstallation && !who.may("contents", "read") {
		return "", &apiError{status: http.StatusForbidden, message: "Access to repository not granted."}
	}
	if _, err := os.Stat(string(repo.git)); err != nil {
		return "", &apiError{status: http.StatusInternalServerError, message: err.Error()}
	}
	return repo.git, nil
}

// refuseGit answers as GitHub does: plain text, with a challenge when
// credentials are missing or wrong.
func refuseGit(w http.ResponseWriter, err error) {
	e, ok := err.(*apiError)
	if !ok {
		e = &apiError{status: http.StatusInternalServerError, message: err.Error()}
	}
	if e.status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", `Basic realm="GitHub"`)
	}
	http.Error(w, e.message, e.status)
}
