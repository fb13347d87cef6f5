//go:build !race

package controller

const everyNth = 1
