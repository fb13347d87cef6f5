// Package blob keeps content-addressed durable files.
package blob
