package machine

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
)

// A machine that listens to users of other hosts (Spec.Listen) has a socket for them from machine
// up on. The holder passes it to each serve, so the port is the machine's alone as long as it
// lives, also between two serves, and a refused connection means that there is no machine. The
// socket belongs to the network of the host, whatever network the holder is in.

// checkListen returns an error unless a text is an address to listen at, or empty.
func checkListen(address string) error {
	if address == "" {
		return nil
	}
	_, port, err := net.SplitHostPort(address)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		return fmt.Errorf("%q is not HOST:PORT of this host: :7118 is port 7118 of all its addresses", address)
	}
	return nil
}

// listen opens the socket for users of other hosts, if the machine has one, and enters its address
// in the spec.
func (o *UpOptions) listen() error {
	if o.Spec.Listen == "" {
		return nil
	}
	l, err := net.Listen("tcp", o.Spec.Listen)
	if err != nil {
		return fmt.Errorf("listen to other hosts: %w", err)
	}
	o.Spec.Listen = l.Addr().String()
	o.users, err = l.(*net.TCPListener).File()
	return errors.Join(err, l.Close())
}

// listener returns the listener of an inherited socket, nil if there is none. It closes the file.
func listener(f *os.File) (net.Listener, error) {
	if f == nil {
		return nil, nil
	}
	defer f.Close()
	l, err := net.FileListener(f)
	if err != nil {
		return nil, fmt.Errorf("serve: socket for other hosts: %w", err)
	}
	return l, nil
}
