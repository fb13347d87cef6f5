// Package hubsim is a GitHub in memory for the demo and the tests.
package hubsim
