//go:build race

package controller

// everyNth thins TestEveryFailure out: the race detector makes it ten times
// slower, and looks for something else than it does.
const everyNth = 9
