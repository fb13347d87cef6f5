// Package count counts words.
package count

import "strings"

// Words returns how many words each text has, counted at the same time.
func Words(texts []string) []int {
	counts := make([]int, len(texts))
	done := make(chan bool)
	for i := range texts {
		go func(i int) {
			counts[i] = len(strings.Fields(texts[i]))
			done <- true
		}(i)
	}
	for range texts {
		<-done
	}
	return counts
}
