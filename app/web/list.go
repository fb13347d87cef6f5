package web

import (
	"net/http"

	"underwrite/handlers/checks"
	"underwrite/store"
)

// listed is how many executions the first page lists.
const listed = 50

type listData struct {
	head
	Rows []listRow
	Most int
}

// listRow is a check run in the list. All strings are Visible.
type listRow struct {
	Href  string
	Check string
	Repo  string
	PR    int64
	Head  string
	Mark  mark
	When  string
}

// listPage lists the latest executions.
func (s *site) listPage(w http.ResponseWriter, r *http.Request) {
	runs, err := s.Records.LatestCheckRuns(r.Context(), listed)
	if err != nil {
		s.failed(w, r, err)
		return
	}
	data := listData{head: s.head("Executions"), Most: listed}
	for _, run := range runs {
		row, err := s.row(run)
		if err != nil {
			s.failed(w, r, err)
			return
		}
		data.Rows = append(data.Rows, row)
		if !run.State.Terminal() {
			data.Refresh = refreshSeconds
		}
	}
	s.render(w, r, "list.html", data)
}

func (s *site) row(run store.CheckRun) (listRow, error) {
	outline, err := s.Reporter.Outline(run)
	if err != nil {
		return listRow{}, err
	}
	when := run.CreatedAt
	if !run.CompletedAt.IsZero() {
		when = run.CompletedAt
	}
	return listRow{
		Href: ExecutionPath(run.ExternalID), Check: shown(checks.NamePrefix + run.Check.Name),
		Repo: shown(run.Session.Repo), PR: run.Session.Number, Head: short(run.Session.HeadSHA),
		Mark: markOf(checks.Judge(outline)), When: moment(when),
	}, nil
}

// short is the beginning of a commit's name, as people know it.
func short(sha string) string { return sha[:min(len(sha), 7)] }
