// Package hubsim is a GitHub in memory for the demo and the tests. It serves,
// on a loopback address, the REST endpoints that this app uses, git's smart
// HTTP protocol over real bare repositories, and signed webhook deliveries.
//
// Every request and every response of the REST API is held to GitHub's OpenAPI
// description, of which package openapi's data carries the part that the app
// may use. A call outside of it is answered with 404 and remembered as a
// violation, so that a test can assert that there was none (Hub.Violations).
// The description says nothing about some rules that GitHub enforces; those are
// in the code, with the message that GitHub gives.
//
// Where hubsim differs from GitHub it is stricter, or says less:
//
//   - A token sees only the repositories it was made for, even public ones.
//   - Without a token git is refused, and nobody can push over HTTP.
//   - "mergeable" is always null, files carry no patch.
//   - A completed check run cannot be set back to queued or in_progress.
//
// The methods of Hub that change the world (CreateRepo, OpenPullRequest, Push,
// …) are what people do on GitHub; each sends the webhook that GitHub would
// send. Deliveries leave in order, one at a time; Flush waits for them.
package hubsim
