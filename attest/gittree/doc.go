// Package gittree measures the synthetic SHA-256 Git tree of a directory
// (protocol section "Synthetic SHA-256 Git tree").
package gittree
