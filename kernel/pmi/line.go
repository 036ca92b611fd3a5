package pmi

import (
	"bytes"
	"errors"
	"fmt"
)

// Lengths in bytes that the protocol announces to its clients (get_maxes). A terminating NUL
// counts.
const (
	maxKeyspace = 256
	maxKey      = 64
	maxValue    = 1024
)

// MaxLine is the longest line that a client may send, in bytes, with its end.
const MaxLine = 4096

// ErrLine reports a line that is not a command.
var ErrLine = errors.New("not a command of PMI 1")

// command is a line: pairs of a key and a value. The first key is cmd or mcmd.
type command struct {
	name  string
	multi bool // the first line of several, up to endcmd
	args  map[string]string
}

// parse reads a line without its end.
func parse(line []byte) (command, error) {
	c := command{args: make(map[string]string)}
	if len(line) >= MaxLine {
		return c, fmt.Errorf("%w: %d bytes, at most %d are allowed", ErrLine, len(line), MaxLine-1)
	}
	for _, b := range line {
		if b < ' ' && b != '\t' || b > '~' {
			return c, fmt.Errorf("%w: byte %#x", ErrLine, b)
		}
	}
	for word := range bytes.FieldsSeq(line) {
		key, value, ok := bytes.Cut(word, []byte{'='})
		switch {
		case !ok || len(key) == 0:
			return c, fmt.Errorf("%w: %.40q is not a pair of a key and a value", ErrLine, word)
		case c.name == "" && (string(key) == "cmd" || string(key) == "mcmd") && len(value) > 0 && len(value) <= maxKey:
			c.name, c.multi = string(value), string(key) == "mcmd"
		case c.name == "":
			return c, fmt.Errorf("%w: it begins with %.40q", ErrLine, word)
		default:
			c.args[string(key)] = string(value)
		}
	}
	if c.name == "" {
		return c, fmt.Errorf("%w: it is empty", ErrLine)
	}
	return c, nil
}
