// Package filter is the extension filter (filter.c) for Go programs.
package filter

import _ "embed"

// Object is the compiled extension, for slot message.
//
//go:embed filter.o
var Object []byte

// The extension's constants: the handler whose messages are filtered, the number of keys, which is
// the number of entries of the map Latest, and the most bytes of payload that are delivered.
const (
	Handler = "handler"
	Keys    = "keys"
	Keep    = "keep"
)

// The extension's maps: the largest number by key, and the number of messages dropped.
const (
	Latest  = "latest"
	Dropped = "dropped"
)
