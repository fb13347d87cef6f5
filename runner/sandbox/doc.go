// Package sandbox defines a sealed run: what goes in, its limits, and what was
// measured. A runtime (package gvisor) implements it.
package sandbox
