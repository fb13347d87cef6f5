// Package config reads the controller's configuration: one strict YAML file,
// documented on the type Config, and the files that it names.
//
// Nothing in it ever comes from a repository or from GitHub. A configuration
// that is wrong anywhere is refused as a whole.
package config
