// Package demo shows the whole product at work: a GitHub in memory, the real
// controller, gateway and sandbox, and four pull requests.
package demo
