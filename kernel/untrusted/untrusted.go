// Package untrusted receives and closes file descriptors that a rank has sent.
//
// What a rank sends through its sockets may carry descriptors of any file. Closing the last
// descriptor of a file can take as long as the rank likes: a socket that lingers (SO_LINGER) waits
// for years until its data is taken. Linux does not wait if the thread that has the last one ends,
// so such a thread closes whatever comes from a rank.
package untrusted

import (
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"margay/internal/rights"
	"margay/internal/throwaway"
)

// ControlSpace is the room for the control data of one message, in bytes.
func ControlSpace() int { return rights.Space(rights.Most) }

// Files returns the descriptors in control data that Linux has written. The caller closes them with
// Close.
func Files(control []byte) []*os.File {
	files, _ := rights.Decode(control, "request")
	return files
}

// Close closes files that a rank has sent, without waiting.
func Close(files []*os.File) {
	if len(files) == 0 {
		return
	}
	copied, closed := make(chan struct{}), make(chan struct{})
	throwaway.Go(func() { holdOpen(copied, closed) })
	<-copied
	rights.Close(files)
	close(closed)
}

// holdOpen holds all files open, in a thread of its own, until closed is closed.
func holdOpen(copied chan<- struct{}, closed <-chan struct{}) {
	// Without memory for a copy, the files are closed as if there were no such thread.
	_ = unix.Unshare(unix.CLONE_FILES)
	close(copied)
	<-closed
}

// CloseSockets closes sockets that Hold has returned, without waiting. Nothing else may receive
// from them.
func CloseSockets(held []*os.File) {
	var full []*os.File
	for _, f := range held {
		if empty(f) {
			f.Close()
		} else {
			full = append(full, f)
		}
	}
	Close(full)
}

// empty reports whether nothing is in a socket, and nothing will be, because its other end is
// closed. Most ranks leave nothing, and looking costs less than a thread.
func empty(socket *os.File) (nothing bool) {
	raw, err := socket.SyscallConn()
	if err != nil {
		return false
	}
	cerr := raw.Control(func(fd uintptr) {
		end := []unix.PollFd{{Fd: int32(fd)}} // which is always reported
		if _, err = unix.Poll(end, 0); err == nil && end[0].Revents&unix.POLLHUP != 0 {
			nothing, err = drained(int(fd))
		}
	})
	return nothing && cerr == nil && err == nil
}

// drained reports whether a socket whose other end is closed has nothing to read.
func drained(fd int) (bool, error) {
	bytes, err := unix.IoctlGetInt(fd, unix.SIOCINQ)
	if err != nil || bytes > 0 {
		return false, err
	}
	kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	if err != nil || kind == unix.SOCK_STREAM { // everything in a stream has bytes
		return err == nil, err
	}
	// A packet without data looks like the end, and others can be behind it. With this option,
	// every packet comes with credentials, and Linux reports that there is no room for them.
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PASSCRED, 1); err != nil {
		return false, err
	}
	_, _, flags, _, err := unix.Recvmsg(fd, make([]byte, 1), nil, unix.MSG_PEEK|unix.MSG_DONTWAIT)
	return flags&unix.MSG_CTRUNC == 0, err
}

// Receive waits for data of a stream socket, and returns the descriptors that came with it. control
// has ControlSpace bytes. At the end of the stream the error is os.ErrClosed.
func Receive(s syscall.RawConn, data, control []byte) ([]*os.File, error) {
	var n, oobn int
	var err error
	rerr := s.Read(func(fd uintptr) bool {
		n, oobn, _, _, err = unix.Recvmsg(int(fd), data, control, unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
		return err != unix.EAGAIN
	})
	switch {
	case rerr != nil:
		return nil, rerr
	case err != nil:
		return nil, err
	case n == 0:
		return nil, os.ErrClosed
	}
	return Files(control[:oobn]), nil
}

// Hold returns another descriptor of a socket. While it is open, descriptors that a rank has sent
// and that were not received stay open too, although the socket is closed. Then CloseSockets closes
// them.
func Hold(s syscall.RawConn) (f *os.File, err error) {
	cerr := s.Control(func(fd uintptr) {
		var copied int
		if copied, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0); err == nil {
			f = os.NewFile(uintptr(copied), "socket")
		}
	})
	if cerr != nil {
		return nil, cerr
	}
	if err != nil {
		return nil, fmt.Errorf("hold a socket: %w", err)
	}
	return f, nil
}
