// Package ghapp is the only holder of the GitHub App key and of installation
// tokens. It speaks to the REST API, maps what it needs of the answers, and
// turns every failure into an Error, which carries no credential.
package ghapp
