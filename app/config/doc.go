// Package config is the controller's typed, strict configuration.
package config
