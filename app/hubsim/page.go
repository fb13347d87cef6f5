package hubsim

import (
	"bytes"
	"html/template"
	"net/http"
	"regexp"
	"strconv"
)

// pullPagePath is where people look at a pull request.
var pullPagePath = regexp.MustCompile(`^/([^/]+/[^/]+)/pull/([0-9]{1,9})$`)

// pullPage shows a pull request and its check runs. Summary and text are shown
// as they were sent: a page that rendered them would have to be as careful as
// GitHub's.
var pullPage = template.Must(template.New("pull").Parse(`<!doctype html>
<html lang="en"><meta charset="utf-8">
<title>{{.Title}} · {{.Pull.Repo}}#{{.Pull.Number}}</title>
<style>body{font:16px/1.5 sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}pre{background:#f4f4f4;padding:1rem;white-space:pre-wrap;overflow-wrap:anywhere}</style>
<h1>{{.Title}} <small>{{.Pull.Repo}}#{{.Pull.Number}}</small></h1>
<p>{{if .Pull.Merged}}merged{{else}}{{.Pull.State}}{{end}}: {{.Pull.HeadRef}} (<code>{{.Pull.HeadSHA}}</code>) into {{.Pull.BaseRef}}</p>
{{range .Runs}}<section>
<h2>{{.Name}}: {{if .Conclusion}}{{.Conclusion}}{{else}}{{.Status}}{{end}}</h2>
{{with .Title}}<p>{{.}}</p>{{end}}
{{with .DetailsURL}}<p><a href="{{.}}">Details</a></p>{{end}}
{{with .Summary}}<pre>{{.}}</pre>{{end}}
{{with .Text}}<details><summary>Text</summary><pre>{{.}}</pre></details>{{end}}
</section>{{else}}<p>No check runs.</p>{{end}}
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
	var page bytes.Buffer
	err = pullPage.Execute(&page, struct {
		Title string
		Pull  PullRequest
		Runs  []CheckRun
	}{p.Title, p, h.CheckRuns(p.Repo, p.HeadSHA)})
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return true
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
	_, _ = w.Write(page.Bytes()) // the reader may be gone
	return true
}
