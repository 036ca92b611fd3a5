package klog

import "strings"

// Panic returns the reason of the last panic in a text of Linux's log, as a console shows it or
// firmware keeps it; empty: there is none. The reason is as untrusted as the text.
func Panic(text string) (reason string) {
	for line := range strings.Lines(text) {
		if r, found := strings.CutPrefix(message(line), "Kernel panic - not syncing: "); found {
			reason = strings.TrimSpace(r)
		}
	}
	return reason
}

// message returns a line without what Linux puts before its text: the priority in angle brackets,
// and in square ones the time, and perhaps the thread.
func message(line string) string {
	if strings.HasPrefix(line, "<") {
		if _, rest, found := strings.Cut(line, ">"); found {
			line = rest
		}
	}
	for strings.HasPrefix(line, "[") {
		_, rest, found := strings.Cut(line, "]")
		if !found {
			break
		}
		line = strings.TrimPrefix(rest, " ")
	}
	return line
}
