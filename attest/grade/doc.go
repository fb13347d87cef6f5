// Package grade holds contract and grade-receipt types and derives a verdict
// from evidence.
package grade
