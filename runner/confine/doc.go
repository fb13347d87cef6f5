// Package confine starts Git and other tools confined; it is the only way to
// start them.
package confine
