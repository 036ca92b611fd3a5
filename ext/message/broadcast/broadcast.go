// Package broadcast is the extension broadcast (broadcast.c) for Go programs.
package broadcast

import _ "embed"

// Object is the compiled extension, for slot message.
//
//go:embed broadcast.o
var Object []byte

// Handler is the constant for the handler of messages to be broadcast. The messages to the ranks
// have the next one.
const Handler = "handler"

// Lost is the map that counts messages that were not sent, because there was no room.
const Lost = "lost"
