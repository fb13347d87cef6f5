// Package policy is the gateway's own configuration: accepted profiles,
// contracts, repositories and ceilings.
package policy
