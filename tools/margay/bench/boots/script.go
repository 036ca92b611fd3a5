package boots

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// script is a text for iPXE.
type script struct {
	lines  [][]string // the words of each line
	labels map[string]int
}

// mostLines bounds a script, which comes from the network.
const mostLines = 1000

// parseScript reads the part of iPXE's language that boot services use.
func parseScript(text string) (*script, error) {
	first, rest, _ := strings.Cut(text, "\n")
	if strings.TrimSpace(first) != "#!ipxe" {
		return nil, errors.New("this is not a script for iPXE")
	}
	s := &script{labels: make(map[string]int)}
	for line := range strings.Lines(rest) {
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		if label, ok := strings.CutPrefix(words[0], ":"); ok {
			s.labels[label] = len(s.lines)
			continue
		}
		if len(s.lines) == mostLines {
			return nil, fmt.Errorf("a script of more than %d lines", mostLines)
		}
		s.lines = append(s.lines, words)
	}
	return s, nil
}

// errBooted is the outcome of a script that starts Linux.
var errBooted = errors.New("booted")

// errFetch reports a file that could not be fetched, or differs.
var errFetch = errors.New("the boot over the network has failed")

// run runs scripts until one of them starts Linux, which is errBooted, or gives up.
func (s *station) run(ctx context.Context, text string) error {
	begun, err := parseScript(text)
	if err != nil {
		return err
	}
	for at := 0; at < len(begun.lines); {
		words := begun.lines[at]
		at++
		next, err := s.step(ctx, words)
		if errors.Is(err, errBooted) || ctx.Err() != nil {
			return err
		}
		if n := len(words); err != nil && n > 3 && words[n-3] == "||" && words[n-2] == "goto" {
			to, ok := begun.labels[words[n-1]]
			if !ok {
				return fmt.Errorf("the script has no label %.40q", words[n-1])
			}
			at = to
			continue
		}
		if err != nil {
			return err
		}
		if next != nil { // chain --replace
			begun, at = next, 0
		}
	}
	return errors.New("the script has come to its end")
}

// step carries out a line of a script. It returns the script that takes its place, if there is one.
func (s *station) step(ctx context.Context, words []string) (next *script, err error) {
	words = words[:len(words):len(words)]
	switch words[0] {
	case "echo":
		return nil, nil
	case "kernel", "initrd":
		return nil, s.load(ctx, location(words))
	case "boot":
		if s.loaded[kernelPath] && s.loaded[imagePath] {
			return nil, errBooted
		}
		return nil, errors.New("there is no kernel or no image")
	case "dhcp":
		return nil, s.lease(ctx, ipxeTimes)
	case "sleep":
		seconds := time.Duration(0)
		if len(words) > 1 {
			fmt.Sscan(words[1], &seconds)
		}
		return nil, pause(ctx, min(seconds, 60)*time.Second)
	case "chain":
		text, err := s.get(ctx, location(words))
		if err != nil {
			return nil, err
		}
		s.counts.Waits.Add(1)
		return parseScript(string(text))
	case "reboot":
		return nil, errFetch
	}
	return nil, fmt.Errorf("iPXE has no command %.40q", words[0])
}

// location returns the first word of a line that is one.
func location(words []string) string {
	for _, w := range words {
		if strings.HasPrefix(w, "http://") {
			return w
		}
	}
	return ""
}

// pause waits.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
