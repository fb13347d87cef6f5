// Package grade runs a contract.
package grade
