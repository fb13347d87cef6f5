// Package posture measures what the sandbox can reach.
package posture
