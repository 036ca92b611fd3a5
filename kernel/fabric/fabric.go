// Package fabric is the network between the nodes of a machine as the node kernel sees it: frames
// for messages, which are many and small, and streams for bulk data. Transports are siblings below
// this package.
package fabric

import (
	"context"
	"errors"
	"net"

	"margay/kernel/abi/id"
)

// MaxFrame is the largest frame, in bytes.
const MaxFrame = 64 << 10

// Class says how urgent a frame is.
type Class int

// The classes. System frames overtake user frames; within a class the order is kept.
const (
	User Class = iota
	System
	Classes // how many there are

	// Prompt frames are user frames that Send accepts without waiting: the sender itself bounds the
	// frames in flight.
	Prompt Class = -1
)

// ErrUnknownNode reports a node without an address (see Meet).
var ErrUnknownNode = errors.New("fabric: unknown node")

// ErrClosed reports use of a transport after Close.
var ErrClosed = errors.New("fabric: transport closed")

// Transport moves frames and streams between this node and others. It is safe for concurrent use.
//
// Frames to one node arrive whole, in order within their class, at most once. They can be lost only
// when the connection to that node breaks, which is reported to each side that lives
// (Handler.Broken); later frames use a new one. With package tcp any error of the network breaks a
// connection, with package udp only the death of the other node or its restart. Frames that were
// still queued here when the other node started again are sent over the next connection.
type Transport interface {
	// Meet sets the address of a node, a host:port.
	Meet(node id.Node, address string)
	// Send queues a frame for a node and connects to it if need be. A user frame waits while too
	// much is queued already; a system frame never does, so that a handler may send it. The frame
	// is the transport's from then on.
	Send(ctx context.Context, to id.Node, class Class, frame []byte) error
	// Stream opens a stream to a service of another node, beside its frames. It takes as long as
	// ctx allows.
	Stream(ctx context.Context, to id.Node, service string) (net.Conn, error)
	// Close ends all connections and waits for everything the transport started.
	Close() error
}

// Handler takes what arrives. Calls about one node come one at a time, except Stream.
type Handler interface {
	// Frame hands over a frame; it is valid until Frame returns. While it has not returned, no
	// further frame of that node is read, which in the end stops the sender.
	Frame(from id.Node, frame []byte)
	// Broken reports that the connection has ended, perhaps with a loss of frames in flight.
	Broken(node id.Node, err error)
	// Stream hands over a stream that another node opened, on a goroutine of its own. The handler
	// closes it.
	Stream(from id.Node, service string, c net.Conn)
}
