// Package rights encodes and decodes file descriptors as control data of AF_UNIX sockets
// (SCM_RIGHTS, unix(7)).
package rights

import (
	"cmp"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Most is the largest number of descriptors in one message (SCM_MAX_FD of Linux).
const Most = 253

// Space returns the size of the control data of n descriptors, in bytes. Linux closes received
// descriptors that do not fit into the buffer.
func Space(n int) int { return unix.CmsgSpace(4 * n) }

// Encode returns control data that carries files, nil for none. The caller still owns the files,
// and must keep them open until the data is sent. A closed one makes the sending fail. The files
// stay as they are: [os.File.Fd] would make them blocking, and with them every other descriptor of
// the same file, whose deadlines would be without effect then.
func Encode(files ...*os.File) []byte {
	if len(files) == 0 {
		return nil
	}
	fds := make([]int, len(files))
	for i, f := range files {
		fds[i] = -1
		if raw, err := f.SyscallConn(); err == nil {
			_ = raw.Control(func(fd uintptr) { fds[i] = int(fd) })
		}
	}
	return unix.UnixRights(fds...)
}

// Duplicate returns another descriptor of what c is one of. c stays as it is (see Encode).
func Duplicate(c syscall.Conn, name string) (*os.File, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	var copied int
	var failed error
	err = raw.Control(func(fd uintptr) { copied, failed = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0) })
	if err = cmp.Or(err, os.NewSyscallError("duplicate descriptor", failed)); err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(copied), name), nil
}

// Decode returns the files in received control data, each with the given name. The caller owns
// them. Other control messages, such as credentials, are skipped. The data must have been received
// with MSG_CMSG_CLOEXEC, as package net does.
func Decode(data []byte, name string) ([]*os.File, error) {
	if len(data) == 0 {
		return nil, nil
	}
	messages, err := unix.ParseSocketControlMessage(data)
	if err != nil {
		return nil, fmt.Errorf("control message: %w", err)
	}
	var files []*os.File
	for i := range messages {
		fds, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			continue
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), name))
		}
	}
	return files, nil
}

// Close closes all files.
func Close(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}
