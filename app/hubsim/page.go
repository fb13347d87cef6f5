package hubsim

import (
	"bytes"
	"fmt"
	"html/template"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/extension"
)

// pullPagePath is where people look at a pull request.
var pullPagePath = regexp.MustCompile(`^/([^/]+/[^/]+)/pull/([0-9]{1,9})$`)

// markdown renders the dialect of GitHub: tables, bare links, strike-through,
// task lists. Raw HTML is left out and dangerous addresses are removed, so that
// its output is safe to embed. GitHub's mentions and references to issues stay
// plain text.
var markdown = goldmark.New(goldmark.WithExtensions(extension.GFM))

// shownRun is a check run as the page shows it.
type shownRun struct {
	CheckRun
	State         string // conclusion or status in words
	Class         string
	Summary, Text template.HTML
	Seconds       string
}

func showRun(run CheckRun) (shownRun, error) {
	s := shownRun{CheckRun: run, State: run.Status}
	if run.Conclusion != "" {
		s.State = run.Conclusion
	}
	s.Class = strings.ReplaceAll(s.State, "_", "-")
	s.State = strings.ReplaceAll(s.State, "_", " ")
	if !run.StartedAt.IsZero() && !run.CompletedAt.IsZero() {
		s.Seconds = fmt.Sprintf("in %.0f s", run.CompletedAt.Sub(run.StartedAt).Round(time.Second).Seconds())
	}
	var err error
	if s.Summary, err = renderMarkdown(run.Summary); err != nil {
		return shownRun{}, err
	}
	s.Text, err = renderMarkdown(run.Text)
	return s, err
}

func renderMarkdown(source string) (template.HTML, error) {
	var b bytes.Buffer
	if err := markdown.Convert([]byte(source), &b); err != nil {
		return "", fmt.Errorf("render Markdown: %w", err)
	}
	return template.HTML(b.String()), nil // safe: see markdown
}

// pullPage shows a pull request and its check runs.
var pullPage = template.Must(template.New("pull").Parse(`<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
{{if .Refresh}}<meta http-equiv="refresh" content="2">
{{end}}<title>{{.Pull.Title}} · {{.Pull.Repo}}#{{.Pull.Number}}</title>
<style>
:root { color-scheme: light dark; --ink: #1f2328; --quiet: #59636e; --paper: #fff; --sheet: #f6f8fa; --line: #d1d9e0; --link: #0550ae;
  --good: #116329; --bad: #a40e26; --warn: #7d4e00; --busy: #0550ae; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --quiet: #9aa5b1; --paper: #0d1117; --sheet: #161b22; --line: #3d444d; --link: #79b8ff;
  --good: #56d364; --bad: #ff8f88; --warn: #e3b341; --busy: #79b8ff; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 62rem; padding: 1rem; background: var(--paper); color: var(--ink); font: 1rem/1.5 system-ui, sans-serif; }
a { color: var(--link); }
:focus-visible { outline: 3px solid var(--link); outline-offset: 2px; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1rem; margin: 0; overflow-wrap: anywhere; }
.note, .quiet { color: var(--quiet); }
.note { font-size: .875rem; margin: 0 0 1rem; }
code, pre { font-family: ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; font-size: .85em; }
code { background: var(--sheet); border-radius: 4px; padding: .1em .3em; overflow-wrap: anywhere; white-space: break-spaces; }
pre { background: var(--sheet); border-radius: 6px; padding: .75rem; overflow: auto; max-height: 30rem; }
pre code { background: none; padding: 0; white-space: pre; }
section { border: 1px solid var(--line); border-radius: 6px; margin: 1rem 0; }
section > header { background: var(--sheet); border-bottom: 1px solid var(--line); border-radius: 6px 6px 0 0; padding: .6rem 1rem; display: flex; flex-wrap: wrap; gap: .25rem .75rem; align-items: baseline; }
section > div { padding: .25rem 1rem 1rem; }
.run-title { font-size: 1.15rem; font-weight: 600; margin: .75rem 0; overflow-wrap: anywhere; }
.mark { border: 1px solid currentColor; border-radius: 1rem; padding: 0 .6rem; font-size: .875rem; font-weight: 600; color: var(--quiet); white-space: nowrap; }
.success { color: var(--good); } .failure { color: var(--bad); } .timed-out, .action-required { color: var(--warn); } .in-progress { color: var(--busy); }
.markdown ul { padding-left: 1.25rem; }
table { border-collapse: collapse; display: block; overflow-x: auto; }
th, td { border: 1px solid var(--line); padding: .35rem .75rem; text-align: left; }
</style>
</head>
<body>
<main>
<p class="note">A GitHub in memory, for the demo. Nothing here left this machine.</p>
<h1>{{.Pull.Title}} <span class="quiet">{{.Pull.Repo}}#{{.Pull.Number}}</span></h1>
<p><span class="mark">{{if .Pull.Merged}}merged{{else}}{{.Pull.State}}{{end}}</span> <code>{{.Pull.HeadRef}}</code> at <code>{{.Pull.HeadSHA}}</code> into <code>{{.Pull.BaseRef}}</code></p>
{{range .Runs}}<section aria-labelledby="run-{{.ID}}">
<header><h2 id="run-{{.ID}}">{{.Name}}</h2> <span class="mark {{.Class}}">{{.State}}</span> <span class="quiet">{{.Seconds}}</span>
{{with .DetailsURL}}<a href="{{.}}">Details</a>{{end}}</header>
<div class="markdown">
{{with .Title}}<p class="run-title">{{.}}</p>{{end}}
{{range .Actions}}<p><button type="button" disabled title="{{.Description}}">{{.Label}}</button></p>{{end}}
{{.Summary}}
{{with .Text}}<details open><summary>Text</summary>
{{.}}</details>{{end}}
</div>
</section>
{{else}}<p>No check runs yet.</p>
{{end}}</main>
</body>
</html>
`))

// servePage answers a request for a page, if it is one.
func (h *Hub) servePage(w http.ResponseWriter, r *http.Request) bool {
	m := pullPagePath.FindStringSubmatch(r.URL.Path)
	if m == nil || r.Method != http.MethodGet {
		return false
	}
	number, _ := strconv.ParseInt(m[2], 10, 64) // digits only
	p, err := h.PullRequest(m[1], number)
	if err != nil {
		http.Error(w, "no such pull request", http.StatusNotFound)
		return true
	}
	page, err := h.pullPage(p)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return true
	}
	for name, value := range map[string]string{
		"Content-Type":            "text/html; charset=utf-8",
		"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
		"X-Content-Type-Options":  "nosniff",
		"Referrer-Policy":         "no-referrer",
		"Cache-Control":           "no-store",
	} {
		w.Header().Set(name, value)
	}
	_, _ = w.Write(page) // the reader may be gone
	return true
}

func (h *Hub) pullPage(p PullRequest) ([]byte, error) {
	data := struct {
		Pull    PullRequest
		Runs    []shownRun
		Refresh bool // while a check run is missing or not over
	}{Pull: p}
	runs := h.CheckRuns(p.Repo, p.HeadSHA)
	data.Refresh = len(runs) == 0 && p.State == "open"
	for _, run := range runs {
		s, err := showRun(run)
		if err != nil {
			return nil, err
		}
		data.Runs = append(data.Runs, s)
		data.Refresh = data.Refresh || run.Conclusion == ""
	}
	var page bytes.Buffer
	err := pullPage.Execute(&page, data)
	return page.Bytes(), err
}
