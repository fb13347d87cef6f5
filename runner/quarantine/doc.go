// Package quarantine takes hostile Git objects in and out: import, walk,
// materialize, output bundle.
package quarantine
