// Package freeze turns a pull request, or a local pair of commits, into the
// frozen input of a session: target document, diff, trusted context, bundle.
package freeze
