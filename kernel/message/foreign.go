package message

import (
	"fmt"
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"margay/internal/rights"
)

// What a rank sends through its sockets may have descriptors of anything with it. To close the last one of a file may take as long
// as the rank likes: a socket that lingers (SO_LINGER) waits for years for its data to be taken. Linux does not wait where a thread
// that ends is the last one, so such a thread closes whatever comes from a rank.

// received takes the descriptors that came with a message.
func received(oob []byte) []*os.File {
	files, _ := rights.Decode(oob, "request") // Linux has written it
	return files
}

// closeForeign closes what a rank has given, and does not wait.
func closeForeign(files []*os.File) {
	if len(files) == 0 {
		return
	}
	copied, closed := make(chan struct{}), make(chan struct{})
	go holdOpen(copied, closed)
	<-copied
	rights.Close(files)
	close(closed)
}

// holdOpen has all files open in a thread of its own until closed is closed. Then the thread ends.
func holdOpen(copied chan<- struct{}, closed <-chan struct{}) {
	runtime.LockOSThread() // and never unlocked, so that the thread ends
	if unix.Gettid() == os.Getpid() {
		defer runtime.UnlockOSThread() // the first thread never does
		over := make(chan struct{})
		go func() {
			defer close(over)
			holdOpen(copied, closed)
		}()
		<-over
		return
	}
	// Without memory for it all is as if nothing was to be held open.
	_ = unix.Unshare(unix.CLONE_FILES)
	close(copied)
	<-closed
}

// takeForeign waits for what a rank sends through a stream, and returns the descriptors that came with it. It needs room for both.
func takeForeign(s syscall.RawConn, data, control []byte) ([]*os.File, error) {
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
	return received(control[:oobn]), nil
}

// holdSocket returns another descriptor of a socket, which has it stay when it is closed.
func holdSocket(s syscall.RawConn) (f *os.File, err error) {
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
