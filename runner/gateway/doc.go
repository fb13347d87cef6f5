// Package gateway is the resident, keyless part of the gateway. It listens on a
// Unix socket, checks who asks, keeps the budgets and starts one `underwrite
// execute` child for each request, whose events it relays. It never opens the
// signing key: what comes over the socket and what signs are different
// processes.
package gateway
