package hubsim

import (
	"encoding/base64"
	"fmt"
	"strings"
	"time"
)

// The shapes in this file are those of the REST API and of webhook payloads,
// which have the same objects with few differences. Callers hold mu.

// timeJSON formats a time as GitHub does: UTC, whole seconds.
func timeJSON(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// timeOrNull is null for no time.
func timeOrNull(t *time.Time) any {
	if t == nil || t.IsZero() {
		return nil
	}
	return timeJSON(*t)
}

func stringOrNull(s string) any {
	if s == "" {
		return nil
	}
	return s
}

func nodeID(kind string, id int64) string {
	return base64.StdEncoding.EncodeToString(fmt.Appendf(nil, "0%d:%s%d", len(kind), kind, id))
}

var userPaths = map[string]string{
	"url": "", "followers_url": "/followers", "following_url": "/following{/other_user}", "gists_url": "/gists{/gist_id}",
	"starred_url": "/starred{/owner}{/repo}", "subscriptions_url": "/subscriptions", "organizations_url": "/orgs",
	"repos_url": "/repos", "events_url": "/events{/privacy}", "received_events_url": "/received_events",
}

func (h *Hub) userJSON(a *account) object {
	kind := "User"
	if a.org {
		kind = "Organization"
	}
	o := object{
		"login": a.login, "id": a.id, "node_id": nodeID(kind, a.id), "type": kind, "site_admin": false, "gravatar_id": "",
		"avatar_url": fmt.Sprintf("%s/avatars/u/%d?v=4", h.base, a.id), "html_url": h.base + "/" + a.login,
	}
	for k, path := range userPaths {
		o[k] = h.base + "/users/" + a.login + path
	}
	return o
}

// userOrNull is null for nobody.
func (h *Hub) userOrNull(a *account) any {
	if a == nil {
		return nil
	}
	return h.userJSON(a)
}

func (h *Hub) orgJSON(a *account) object {
	o := object{"login": a.login, "id": a.id, "node_id": nodeID("Organization", a.id), "description": nil, "avatar_url": fmt.Sprintf("%s/avatars/u/%d?v=4", h.base, a.id)}
	for k, path := range map[string]string{
		"url": "", "repos_url": "/repos", "events_url": "/events", "hooks_url": "/hooks", "issues_url": "/issues",
		"members_url": "/members{/member}", "public_members_url": "/public_members{/member}",
	} {
		o[k] = h.base + "/orgs/" + a.login + path
	}
	return o
}

var repoPaths = map[string]string{
	"url": "", "forks_url": "/forks", "keys_url": "/keys{/key_id}", "collaborators_url": "/collaborators{/collaborator}",
	"teams_url": "/teams", "hooks_url": "/hooks", "issue_events_url": "/issues/events{/number}", "events_url": "/events",
	"assignees_url": "/assignees{/user}", "branches_url": "/branches{/branch}", "tags_url": "/tags", "blobs_url": "/git/blobs{/sha}",
	"git_tags_url": "/git/tags{/sha}", "git_refs_url": "/git/refs{/sha}", "trees_url": "/git/trees{/sha}",
	"statuses_url": "/statuses/{sha}", "languages_url": "/languages", "stargazers_url": "/stargazers",
	"contributors_url": "/contributors", "subscribers_url": "/subscribers", "subscription_url": "/subscription",
	"commits_url": "/commits{/sha}", "git_commits_url": "/git/commits{/sha}", "comments_url": "/comments{/number}",
	"issue_comment_url": "/issues/comments{/number}", "contents_url": "/contents/{+path}",
	"compare_url": "/compare/{base}...{head}", "merges_url": "/merges", "archive_url": "/{archive_format}{/ref}",
	"downloads_url": "/downloads", "issues_url": "/issues{/number}", "pulls_url": "/pulls{/number}",
	"milestones_url": "/milestones{/number}", "notifications_url": "/notifications{?since,all,participating}",
	"labels_url": "/labels{/name}", "releases_url": "/releases{/id}", "deployments_url": "/deployments",
}

func (h *Hub) repoURL(r *repository) string  { return h.base + "/repos/" + r.fullName() }
func (h *Hub) repoPage(r *repository) string { return h.base + "/" + r.fullName() }

func (h *Hub) repoJSON(r *repository) object {
	open := 0
	for _, p := range r.pulls {
		if p.state == "open" {
			open++
		}
	}
	forks := 0
	for _, other := range h.repos {
		if other.parent == r {
			forks++
		}
	}
	page := h.repoPage(r)
	o := object{
		"id": r.id, "node_id": nodeID("Repository", r.id), "name": r.name, "full_name": r.fullName(), "owner": h.userJSON(r.owner),
		"private": true, "visibility": "private", "html_url": page, "description": nil, "fork": r.parent != nil,
		"created_at": timeJSON(r.createdAt), "updated_at": timeJSON(r.pushedAt), "pushed_at": timeJSON(r.pushedAt),
		"git_url": "git://" + strings.TrimPrefix(page, "http://") + ".git", "ssh_url": "git@hubsim.invalid:" + r.fullName() + ".git",
		"clone_url": page + ".git", "svn_url": page, "homepage": nil, "size": 0, "stargazers_count": 0, "watchers_count": 0,
		"language": nil, "has_issues": true, "has_projects": false, "has_downloads": true, "has_wiki": false, "has_pages": false,
		"has_discussions": false, "forks_count": forks, "mirror_url": nil, "archived": false, "disabled": false,
		"open_issues_count": open, "license": nil, "forks": forks, "open_issues": open, "watchers": 0,
		"default_branch": r.defaultBranch, "is_template": false, "topics": []string{}, "web_commit_signoff_required": false,
		"custom_properties": object{}, "allow_forking": true,
		"allow_merge_commit": true, "allow_squash_merge": true, "allow_rebase_merge": true, "allow_auto_merge": false,
		"allow_update_branch": false, "delete_branch_on_merge": false,
	}
	for k, path := range repoPaths {
		o[k] = h.repoURL(r) + path
	}
	return o
}

func (h *Hub) pullURL(p *pull) string { return fmt.Sprintf("%s/pulls/%d", h.repoURL(p.base), p.number) }
func (h *Hub) pullPageURL(p *pull) string {
	return fmt.Sprintf("%s/pull/%d", h.repoPage(p.base), p.number)
}
func (h *Hub) issueURL(p *pull) string {
	return fmt.Sprintf("%s/issues/%d", h.repoURL(p.base), p.number)
}

// pullJSON is a pull request in full, as GET pulls/N and webhooks have it.
func (h *Hub) pullJSON(p *pull) object {
	o := h.pullSimpleJSON(p)
	added, deleted := 0, 0
	for _, f := range p.files {
		added, deleted = added+f.added, deleted+f.deleted
	}
	for k, v := range (object{
		"merged": p.mergedAt != nil, "mergeable": nil, "rebaseable": nil, "mergeable_state": "unknown",
		"merged_by": h.userOrNull(p.mergedBy), "comments": len(commentsOn(p)), "review_comments": 0,
		"maintainer_can_modify": p.headRepo != p.base, "commits": len(p.commits), "additions": added, "deletions": deleted,
		"changed_files": len(p.files),
	}) {
		o[k] = v
	}
	return o
}

// pullSimpleJSON is a pull request as lists have it.
func (h *Hub) pullSimpleJSON(p *pull) object {
	url, issue := h.pullURL(p), h.issueURL(p)
	o := object{
		"url": url, "id": p.id, "node_id": nodeID("PullRequest", p.id), "html_url": h.pullPageURL(p), "diff_url": h.pullPageURL(p) + ".diff",
		"patch_url": h.pullPageURL(p) + ".patch", "issue_url": issue, "number": p.number, "state": p.state, "locked": false,
		"title": p.title, "user": h.userJSON(p.author), "body": stringOrNull(p.body), "created_at": timeJSON(p.createdAt),
		"updated_at": timeJSON(p.updatedAt), "closed_at": timeOrNull(p.closedAt), "merged_at": timeOrNull(p.mergedAt),
		"merge_commit_sha": stringOrNull(p.mergeSHA), "assignee": nil, "assignees": []any{}, "requested_reviewers": []any{},
		"requested_teams": []any{}, "labels": []any{}, "milestone": nil, "draft": p.draft, "commits_url": url + "/commits",
		"review_comments_url": url + "/comments", "review_comment_url": h.repoURL(p.base) + "/pulls/comments{/number}",
		"comments_url": issue + "/comments", "statuses_url": h.repoURL(p.base) + "/statuses/" + p.headSHA,
		"head":               h.sideJSON(p.headOwner, p.headRepo, p.headRef, p.headSHA),
		"base":               h.sideJSON(p.base.owner, p.base, p.baseRef, p.baseSHA),
		"author_association": h.association(p.base, p.author), "auto_merge": nil, "active_lock_reason": nil,
	}
	links := object{}
	for name, href := range map[string]string{
		"self": url, "html": h.pullPageURL(p), "issue": issue, "comments": issue + "/comments",
		"review_comments": url + "/comments", "review_comment": h.repoURL(p.base) + "/pulls/comments{/number}",
		"commits": url + "/commits", "statuses": h.repoURL(p.base) + "/statuses/" + p.headSHA,
	} {
		links[name] = object{"href": href}
	}
	o["_links"] = links
	return o
}

// sideJSON is the head or base of a pull request; repo is nil once deleted.
func (h *Hub) sideJSON(owner *account, repo *repository, ref, sha string) object {
	o := object{"label": owner.login + ":" + ref, "ref": ref, "sha": sha, "user": h.userJSON(owner), "repo": nil}
	if repo != nil {
		o["repo"] = h.repoJSON(repo)
	}
	return o
}

// association is what GitHub calls the author's relation to the repository. It
// is no authority for anything.
func (h *Hub) association(r *repository, a *account) string {
	switch role := r.roles[strings.ToLower(a.login)]; {
	case a == r.owner:
		return "OWNER"
	case role != "" && role != "none":
		return "COLLABORATOR"
	default:
		return "NONE"
	}
}

func commentsOn(p *pull) []*comment {
	var list []*comment
	for _, c := range p.base.comments {
		if c.number == p.number {
			list = append(list, c)
		}
	}
	return list
}

func (h *Hub) commentJSON(r *repository, c *comment) object {
	return object{
		"id": c.id, "node_id": nodeID("IssueComment", c.id), "url": fmt.Sprintf("%s/issues/comments/%d", h.repoURL(r), c.id),
		"html_url":  fmt.Sprintf("%s/pull/%d#issuecomment-%d", h.repoPage(r), c.number, c.id),
		"issue_url": fmt.Sprintf("%s/issues/%d", h.repoURL(r), c.number), "user": h.userJSON(c.author), "body": c.body,
		"created_at": timeJSON(c.createdAt), "updated_at": timeJSON(c.createdAt), "author_association": h.association(r, c.author),
		"performed_via_github_app": nil,
	}
}

// issuePayload is the issue behind a pull request, as issue_comment has it.
func (h *Hub) issuePayload(r *repository, p *pull) object {
	url := h.issueURL(p)
	return object{
		"url": url, "repository_url": h.repoURL(r), "labels_url": url + "/labels{/name}", "comments_url": url + "/comments",
		"events_url": url + "/events", "html_url": h.pullPageURL(p), "id": p.id, "node_id": nodeID("PullRequest", p.id),
		"number": p.number, "title": p.title, "user": h.userJSON(p.author), "labels": []any{}, "state": p.state, "locked": false,
		"assignee": nil, "assignees": []any{}, "milestone": nil, "comments": len(commentsOn(p)),
		"created_at": timeJSON(p.createdAt), "updated_at": timeJSON(p.updatedAt), "closed_at": timeOrNull(p.closedAt),
		"author_association": h.association(r, p.author), "body": stringOrNull(p.body), "active_lock_reason": nil, "draft": p.draft,
		"pull_request": object{
			"url": h.pullURL(p), "html_url": h.pullPageURL(p), "diff_url": h.pullPageURL(p) + ".diff",
			"patch_url": h.pullPageURL(p) + ".patch", "merged_at": timeOrNull(p.mergedAt),
		},
	}
}

// appJSON is the GitHub App.
func (h *Hub) appJSON() object {
	return object{
		"id": h.opts.AppID, "client_id": h.clientID(), "slug": h.opts.AppSlug, "node_id": nodeID("Integration", h.opts.AppID),
		"owner": h.userJSON(h.appOwner()), "name": h.opts.AppSlug, "description": nil, "external_url": "https://underwrite.example.com",
		"html_url": h.base + "/apps/" + h.opts.AppSlug, "created_at": timeJSON(h.created), "updated_at": timeJSON(h.created),
		"permissions": h.opts.Permissions, "events": h.opts.Events,
	}
}

// appOwner is the account that registered the app.
func (h *Hub) appOwner() *account { return h.account(h.opts.AppSlug + "-owner") }

func (h *Hub) clientID() string { return fmt.Sprintf("Iv23hubsim%d", h.opts.AppID) }

func (h *Hub) installationJSON(i *installation) object {
	o := object{
		"id": i.id, "account": h.userJSON(i.account), "app_id": h.opts.AppID, "app_slug": h.opts.AppSlug, "target_id": i.account.id,
		"target_type": h.userJSON(i.account)["type"], "repository_selection": selection(i.repos == nil),
		"access_tokens_url": fmt.Sprintf("%s/app/installations/%d/access_tokens", h.base, i.id),
		"repositories_url":  h.base + "/installation/repositories", "html_url": fmt.Sprintf("%s/settings/installations/%d", h.base, i.id),
		"permissions": i.permissions, "events": h.opts.Events, "created_at": timeJSON(i.createdAt), "updated_at": timeJSON(i.createdAt),
		"single_file_name": nil, "suspended_at": nil, "suspended_by": nil,
	}
	return o
}

// installationPayload is an installation as its own event has it: the times are
// numbers of seconds there.
func (h *Hub) installationPayload(i *installation) object {
	o := h.installationJSON(i)
	o["created_at"], o["updated_at"] = i.createdAt.Unix(), i.createdAt.Unix()
	return o
}

func selection(all bool) string {
	if all {
		return "all"
	}
	return "selected"
}

// repositoryNames lists an installation's repositories in the short form.
func (h *Hub) repositoryNames(i *installation) []object {
	list := []object{}
	for _, r := range h.installedRepos(i) {
		list = append(list, object{
			"id": r.id, "node_id": nodeID("Repository", r.id), "name": r.name, "full_name": r.fullName(), "private": true,
		})
	}
	return list
}
