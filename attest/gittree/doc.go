// Package gittree computes the synthetic SHA-256 Git tree of version 1
// (protocol, "Synthetic SHA-256 Git tree").
//
// Measure walks a directory. BlobID, TreeID and RootID are the pure parts, for
// callers that have the content from elsewhere, such as git objects.
package gittree
