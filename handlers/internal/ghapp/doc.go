// Package ghapp is the only holder of the GitHub App key and of installation
// tokens.
package ghapp
