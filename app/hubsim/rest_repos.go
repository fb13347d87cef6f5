package hubsim

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
)

// reading is an operation that needs a repository permission at level read.
func reading(f func(*Hub, *call) (int, any, error), permissions ...string) operation {
	return operation{who: asInstallation, permissions: permissions, level: "read", serve: f}
}

func init() {
	maps.Copy(operations, map[string]operation{
		"repos/get": reading((*Hub).getRepo, "metadata"),
		"repos/get-collaborator-permission-level":         reading((*Hub).getPermission, "metadata"),
		"repos/get-commit":                                reading((*Hub).getCommit, "contents"),
		"git/get-ref":                                     reading((*Hub).getRef, "contents"),
		"repos/list-pull-requests-associated-with-commit": reading((*Hub).listCommitPulls, "pull_requests"),
		"issues/get-comment":                              reading((*Hub).getComment, "issues", "pull_requests"),
		"issues/list-comments":                            reading((*Hub).listComments, "issues", "pull_requests"),
	})
}

func (h *Hub) getRepo(c *call) (int, any, error) {
	o := h.repoJSON(c.repo)
	o["network_count"], o["subscribers_count"] = o["forks_count"], 0
	if c.repo.parent != nil {
		o["parent"], o["source"] = h.repoJSON(c.repo.parent), h.repoJSON(c.repo.parent)
	}
	return http.StatusOK, o, nil
}

// getPermission answers with the four old levels; role_name tells maintain and
// triage apart. Somebody who exists has at least "none".
func (h *Hub) getPermission(c *call) (int, any, error) {
	login := c.params["username"]
	user := h.accounts[strings.ToLower(login)]
	if user == nil {
		return 0, nil, notFound
	}
	role := orElse(c.repo.roles[strings.ToLower(login)], "none")
	if user == c.repo.owner && !user.org {
		role = "admin"
	}
	permission := role
	switch role {
	case "maintain":
		permission = "write"
	case "triage":
		permission = "read"
	}
	u := h.userJSON(user)
	at := func(level string) bool { return slices.Index(roles, role) >= slices.Index(roles, level) }
	u["role_name"] = role
	u["permissions"] = object{
		"pull": at("read"), "triage": at("triage"), "push": at("write"), "maintain": at("maintain"), "admin": at("admin"),
	}
	return http.StatusOK, object{"permission": permission, "role_name": role, "user": u}, nil
}

// resolve finds the commit that a full object name, a branch, a tag, or a ref
// without "refs/" names.
func (r *repository) resolve(ref string) (string, error) {
	if isSHA(ref) {
		if !r.git.hasCommit(ref) {
			return "", unprocessable("No commit found for SHA: " + ref)
		}
		return ref, nil
	}
	if !plainRef(ref) {
		return "", unprocessable("No commit found for SHA: " + ref)
	}
	for _, prefix := range []string{"refs/heads/", "refs/tags/", "refs/"} {
		sha, err := r.git.commitAt(prefix + ref)
		if err != nil || sha != "" {
			return sha, err
		}
	}
	return "", unprocessable("No commit found for SHA: " + ref)
}

// plainRef tells whether a string is a ref's name and no revision expression
// or pattern.
func plainRef(s string) bool {
	return s != "" && !strings.ContainsAny(s, " ~^:?*[\\\x7f") && !strings.Contains(s, "..") && !strings.Contains(s, "@{") &&
		!strings.HasPrefix(s, "-") && !strings.HasSuffix(s, "/") && strings.IndexFunc(s, func(c rune) bool { return c < ' ' }) < 0
}

func (h *Hub) commitJSON(r *repository, c commitInfo) object {
	url := h.repoURL(r) + "/commits/" + c.sha
	parents := []object{}
	for _, p := range c.parents {
		parents = append(parents, object{"sha": p, "url": h.repoURL(r) + "/commits/" + p, "html_url": h.repoPage(r) + "/commit/" + p})
	}
	return object{
		"sha": c.sha, "node_id": nodeID("Commit", r.id) + c.sha[:8], "url": url, "html_url": h.repoPage(r) + "/commit/" + c.sha,
		"comments_url": url + "/comments", "author": nil, "committer": nil, "parents": parents,
		"commit": object{
			"url":       h.repoURL(r) + "/git/commits/" + c.sha,
			"author":    object{"name": c.name, "email": c.email, "date": c.date},
			"committer": object{"name": c.cname, "email": c.cemail, "date": c.cdate},
			"message":   c.message, "comment_count": 0,
			"tree":         object{"sha": c.tree, "url": h.repoURL(r) + "/git/trees/" + c.tree},
			"verification": object{"verified": false, "reason": "unsigned", "signature": nil, "payload": nil, "verified_at": nil},
		},
	}
}

func (h *Hub) fileJSON(r *repository, sha string, f fileChange) object {
	o := object{
		"sha": f.blob, "filename": f.path, "status": f.status, "additions": f.added, "deletions": f.deleted,
		"changes": f.added + f.deleted, "blob_url": fmt.Sprintf("%s/blob/%s/%s", h.repoPage(r), sha, escapePath(f.path)),
		"raw_url":      fmt.Sprintf("%s/raw/%s/%s", h.repoPage(r), sha, escapePath(f.path)),
		"contents_url": fmt.Sprintf("%s/contents/%s?ref=%s", h.repoURL(r), escapePath(f.path), sha),
	}
	if f.oldPath != "" {
		o["previous_filename"] = f.oldPath
	}
	return o
}

func (h *Hub) getCommit(c *call) (int, any, error) {
	sha, err := c.repo.resolve(c.params["ref"])
	if err != nil {
		return 0, nil, err
	}
	list, err := c.repo.git.log("--max-count=1", sha)
	if err != nil {
		return 0, nil, err
	}
	info := list[0]
	from := emptyTree
	if len(info.parents) > 0 {
		from = info.parents[0]
	}
	files, err := c.repo.git.diff(from, sha)
	if err != nil {
		return 0, nil, err
	}
	o := h.commitJSON(c.repo, info)
	shown, added, deleted := []object{}, 0, 0
	for _, f := range files {
		added, deleted = added+f.added, deleted+f.deleted
	}
	for _, f := range page(c, files) {
		shown = append(shown, h.fileJSON(c.repo, sha, f))
	}
	o["files"] = shown
	o["stats"] = object{"additions": added, "deletions": deleted, "total": added + deleted}
	return http.StatusOK, o, nil
}

// emptyTree is the SHA-1 name of a tree without entries, which git knows.
const emptyTree = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"

func (h *Hub) getRef(c *call) (int, any, error) {
	name := c.params["ref"]
	if !plainRef(name) {
		return 0, nil, notFound
	}
	ref := "refs/" + name
	out, err := c.repo.git.line("for-each-ref", "--format=%(refname) %(objecttype) %(objectname)", ref)
	if err != nil {
		return 0, nil, err
	}
	f := strings.Fields(out)
	if len(f) != 3 || f[0] != ref { // more: a folder of refs
		return 0, nil, notFound
	}
	return http.StatusOK, object{
		"ref": ref, "node_id": nodeID("Ref", c.repo.id) + ref, "url": h.repoURL(c.repo) + "/git/" + ref,
		"object": object{"type": f[1], "sha": f[2], "url": fmt.Sprintf("%s/git/%ss/%s", h.repoURL(c.repo), f[1], f[2])},
	}, nil
}

// listCommitPulls lists the pull requests whose commits have this one, or that
// it merged.
func (h *Hub) listCommitPulls(c *call) (int, any, error) {
	sha, err := c.repo.resolve(c.params["commit_sha"])
	if err != nil {
		return 0, nil, err
	}
	var found []*pull
	for _, p := range c.repo.sortedPulls() {
		if p.mergeSHA == sha || slices.ContainsFunc(p.commits, func(i commitInfo) bool { return i.sha == sha }) {
			found = append(found, p)
		}
	}
	list := []object{}
	for _, p := range page(c, found) {
		list = append(list, h.pullSimpleJSON(p))
	}
	return http.StatusOK, list, nil
}

func (h *Hub) getComment(c *call) (int, any, error) {
	id := c.intParam("comment_id")
	for _, m := range c.repo.comments {
		if m.id == id {
			return http.StatusOK, h.commentJSON(c.repo, m), nil
		}
	}
	return 0, nil, notFound
}

func (h *Hub) listComments(c *call) (int, any, error) {
	p := c.repo.pulls[c.intParam("issue_number")]
	if p == nil {
		return 0, nil, notFound
	}
	comments := commentsOn(p)
	if since := c.query.Get("since"); since != "" { // comments are never edited here
		comments = slices.DeleteFunc(comments, func(m *comment) bool { return timeJSON(m.createdAt) < since })
	}
	list := []object{}
	for _, m := range page(c, comments) {
		list = append(list, h.commentJSON(c.repo, m))
	}
	return http.StatusOK, list, nil
}
