// Command oldlib is a rank whose library speaks another version of the application interface than
// the node kernel.
package main

import (
	"fmt"
	"net"
	"os"

	"margay/kernel/abi/wire"
)

func main() {
	status, err := hello()
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	if status == wire.StatusVersion {
		os.Exit(3)
	}
}

func hello() (wire.Status, error) {
	conn, err := net.FileConn(os.NewFile(wire.FD, "margay"))
	if err != nil {
		return 0, err
	}
	packet, err := wire.Request{Op: wire.OpHello, Value: wire.Version + 41}.Encode()
	if err != nil {
		return 0, err
	}
	if _, err := conn.Write(packet); err != nil {
		return 0, err
	}
	buf := make([]byte, wire.ReplySize)
	n, err := conn.Read(buf)
	if err != nil {
		return 0, err
	}
	reply, err := wire.DecodeReply(buf[:n])
	fmt.Println(reply.Text)
	return reply.Status, err
}
