package hubsim

import (
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// GitHub's limits.
const (
	maxPullCommits = 250
	maxPullFiles   = 3000
)

func init() {
	maps.Copy(operations, map[string]operation{
		"pulls/list":         reading((*Hub).listPulls, "pull_requests"),
		"pulls/get":          reading((*Hub).getPull, "pull_requests"),
		"pulls/list-files":   reading((*Hub).listPullFiles, "pull_requests"),
		"pulls/list-commits": reading((*Hub).listPullCommits, "pull_requests"),
	})
}

func (h *Hub) listPulls(c *call) (int, any, error) {
	state := orElse(c.query.Get("state"), "open")
	pulls := slices.DeleteFunc(c.repo.sortedPulls(), func(p *pull) bool {
		head := c.query.Get("head") // owner:branch
		base := c.query.Get("base")
		return state != "all" && p.state != state ||
			head != "" && !strings.EqualFold(head, p.headOwner.login+":"+p.headRef) || base != "" && base != p.baseRef
	})
	if c.query.Get("sort") == "updated" {
		slices.SortStableFunc(pulls, func(a, b *pull) int { return a.updatedAt.Compare(b.updatedAt) })
	}
	// GitHub sorts by creation newest first, and by anything else oldest first.
	newestFirst := c.query.Get("sort") == "" || c.query.Get("sort") == "created"
	if direction := c.query.Get("direction"); direction != "" {
		newestFirst = direction == "desc"
	}
	if newestFirst {
		slices.Reverse(pulls)
	}
	list := []object{}
	for _, p := range page(c, pulls) {
		list = append(list, h.pullSimpleJSON(p))
	}
	return http.StatusOK, list, nil
}

func (c *call) pull() (*pull, error) {
	if p := c.repo.pulls[c.intParam("pull_number")]; p != nil {
		return p, nil
	}
	return nil, notFound
}

func (h *Hub) getPull(c *call) (int, any, error) {
	p, err := c.pull()
	if err != nil {
		return 0, nil, err
	}
	return http.StatusOK, h.pullJSON(p), nil
}

func (h *Hub) listPullFiles(c *call) (int, any, error) {
	p, err := c.pull()
	if err != nil {
		return 0, nil, err
	}
	list := []object{}
	for _, f := range page(c, p.files[:min(len(p.files), maxPullFiles)]) {
		list = append(list, h.fileJSON(c.repo, p.headSHA, f))
	}
	return http.StatusOK, list, nil
}

func (h *Hub) listPullCommits(c *call) (int, any, error) {
	p, err := c.pull()
	if err != nil {
		return 0, nil, err
	}
	list := []object{}
	for _, info := range page(c, p.commits[:min(len(p.commits), maxPullCommits)]) {
		list = append(list, h.commitJSON(c.repo, info))
	}
	return http.StatusOK, list, nil
}

// escapePath escapes a file's path for a URL, keeping the slashes.
func escapePath(p string) string {
	parts := strings.Split(p, "/")
	for i, s := range parts {
		parts[i] = url.PathEscape(s)
	}
	return strings.Join(parts, "/")
}
