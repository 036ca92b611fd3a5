package kernel

import (
	"context"
	"fmt"
	"net"
	"time"

	"margay/kernel/abi/gdb"
	"margay/kernel/abi/id"
)

// Debug gives a job the stream of a debugger of one of its ranks (package gdb), and passes bytes
// until the stream, the job or ctx ends. The stream is closed then. The other end gets the error,
// too, as far as it can.
func (n *Node) Debug(ctx context.Context, number id.Job, rank id.Rank, stream net.Conn) error {
	defer stream.Close()
	near, err := n.openDebug(ctx, number, rank)
	if err != nil {
		_ = gdb.WriteAnswer(stream, err)
		return err
	}
	carry(ctx, near, stream)
	return nil
}

// initWait bounds how long a job init may take to take the stream of a debugger.
const initWait = 15 * time.Second

// openDebug opens a stream to the init of a job.
func (n *Node) openDebug(ctx context.Context, number id.Job, rank id.Rank) (net.Conn, error) {
	j, err := n.get(number)
	if err != nil {
		return nil, err
	}
	near, far, err := socketPair()
	if err != nil {
		return nil, fmt.Errorf("debug rank %d of job %d: %w", rank, number, err)
	}
	defer far.Close()
	ctx, cancel := context.WithTimeout(ctx, initWait)
	defer cancel()
	if err := j.container.Debug(ctx, rank, far); err != nil {
		near.Close()
		return nil, fmt.Errorf("debug rank %d of job %d: %w", rank, number, err)
	}
	return near, nil
}
