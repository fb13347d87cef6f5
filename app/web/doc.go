// Package web serves the controller's pages, health and metrics; New makes the
// handler.
//
// There is no login: whoever reaches the listener may read everything here.
// What is shown is the target, job, streams, receipts and bundles of the pull
// requests that are served. No page holds a key, a token, a webhook's body, a
// challenge of a run that is not over, or a path of this machine. Where the
// repositories are private, let a proxy pass nothing but the webhook from
// outside.
//
// Streams, paths, names and titles come from pull requests and from the jobs
// they run. Pages show them bounded, made visible (checks.Visible) and escaped
// by html/template; downloads are attachments that no browser renders. Nothing
// is loaded from elsewhere and no script runs.
package web
