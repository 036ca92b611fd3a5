package kernel

import (
	"context"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"margay/internal/splice"
	"margay/kernel/abi/id"
)

// Share gives a job a stream to its client, for the folders that it shares with the ranks, and
// passes bytes until the stream, the job or ctx ends. The stream is closed then.
func (n *Node) Share(ctx context.Context, number id.Job, stream net.Conn) error {
	defer stream.Close()
	j, err := n.get(number)
	if err != nil {
		return err
	}
	near, far, err := socketPair()
	if err != nil {
		return fmt.Errorf("share files with job %d: %w", number, err)
	}
	err = j.container.Share(far)
	far.Close()
	if err != nil {
		near.Close()
		return err
	}
	carry(ctx, near, stream)
	return nil
}

// carry passes bytes between a stream and a job until one of them or ctx ends, and closes near.
func carry(ctx context.Context, near, stream net.Conn) {
	defer near.Close()
	defer context.AfterFunc(ctx, func() { near.Close() })()
	splice.Join(near, stream)
}

// socketPair returns a connected pair of sockets, one of them as a file for another process.
func socketPair() (near net.Conn, far *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	own := os.NewFile(uintptr(fds[0]), "stream")
	defer own.Close() // net.FileConn has a descriptor of its own
	far = os.NewFile(uintptr(fds[1]), "stream")
	if near, err = net.FileConn(own); err != nil {
		far.Close()
		return nil, nil, err
	}
	return near, far, nil
}
