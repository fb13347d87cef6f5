package web

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"html/template"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"

	"underwrite/handlers/checks"
)

//go:embed assets
var assets embed.FS

// maxShownBytes bounds one value from outside on a page. Streams have their
// own bound.
const maxShownBytes = 1024

// refreshSeconds is how often the page of something that is not over reloads.
const refreshSeconds = 3

var templates = template.Must(template.New("").ParseFS(assets, "assets/*.html"))

var (
	styleSheet, _ = assets.ReadFile("assets/style.css") // embedded: it is there
	// stylePath changes with the content, so that it may be cached for ever.
	stylePath = "/style-" + digestOf(styleSheet)[:16] + ".css"
)

// head is what every page has. Title is Visible.
type head struct {
	Title   string
	Style   string
	Version string
	Refresh int // seconds, 0: not at all
}

func (s *site) head(title string) head {
	return head{Title: title, Style: stylePath, Version: shown(s.Version)}
}

// shown makes a value from outside fit for a page: bounded, on one line, and
// with everything visible that hides or moves other text.
func shown(s string) string {
	cut := len(s) > maxShownBytes
	if cut {
		n := maxShownBytes
		for n > 0 && !utf8.RuneStart(s[n]) {
			n--
		}
		s = s[:n]
	}
	s = checks.Visible(s, false)
	if cut {
		s += "…"
	}
	return s
}

// moment writes a time for people and machines; empty for an unknown one.
func moment(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02 15:04:05 UTC")
}

// render answers with a page that the reader's cache asks for again each time.
func (s *site) render(w http.ResponseWriter, r *http.Request, name string, data any) {
	var page bytes.Buffer
	if err := templates.ExecuteTemplate(&page, name, data); err != nil {
		s.failed(w, r, err)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Cache-Control", "private, no-cache")
	w.Header().Set("ETag", `"`+digestOf(page.Bytes())[:32]+`"`)
	r.Header.Del("Range") // of a page that changes
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(page.Bytes()))
}

// style serves the style sheet.
func (s *site) style(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/css; charset=utf-8")
	w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(styleSheet))
}

type errorData struct {
	head
	Status int
	Help   string
}

// errorPage answers with a status and one line that helps.
func (s *site) errorPage(w http.ResponseWriter, r *http.Request, status int, help string) {
	var page bytes.Buffer
	title := http.StatusText(status)
	if err := templates.ExecuteTemplate(&page, "error.html", errorData{s.head(title), status, help}); err != nil {
		s.Log.Error("no error page", "error", err)
	}
	h := w.Header()
	for _, name := range []string{"ETag", "Content-Disposition", "Content-Length"} {
		h.Del(name)
	}
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	if r.Method != http.MethodHead {
		_, _ = w.Write(page.Bytes()) // the reader may be gone
	}
}

func (s *site) notFound(w http.ResponseWriter, r *http.Request) {
	s.errorPage(w, r, http.StatusNotFound, "There is nothing under this address. The list of executions links to the latest ones.")
}

func (s *site) methodPage(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Allow", "GET, HEAD")
	s.errorPage(w, r, http.StatusMethodNotAllowed, "These pages can only be read: use GET or HEAD.")
}

// failed answers for an error of ours, which goes to the log. A reader who went
// away is none.
func (s *site) failed(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() != nil {
		return
	}
	s.Log.Error("no page", "path", r.URL.Path, "error", err)
	s.errorPage(w, r, http.StatusInternalServerError, "The controller could not read its records. Try again; if this stays, its log says why.")
}

func digestOf(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// mark is a verdict as a page shows it.
type mark struct {
	Word  string // status or conclusion in words
	Class string // of the style sheet
	Title string
}

func markOf(v checks.Verdict) mark {
	word := v.Conclusion
	if word == "" {
		word = v.Status
	}
	return mark{Word: strings.ReplaceAll(word, "_", " "), Class: "mark-" + strings.ReplaceAll(word, "_", "-"), Title: v.Title}
}
