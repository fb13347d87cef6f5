// Package checks says how an execution looks as a GitHub check run: Render turns
// a Report into a Run within GitHub's limits. Package handlers implements the
// Poster.
package checks
