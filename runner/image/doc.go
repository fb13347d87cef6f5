// Package image provides the root file system of a job.
package image
