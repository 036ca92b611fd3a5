package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// forged is a packet of the network of a job from its first node to its second, in a VXLAN packet:
// to UDP port 9999, with a payload of size bytes.
func forged(job uint32, size int) []byte {
	b := binary.BigEndian.AppendUint32(nil, 0x08000000) // VXLAN: it has a number,
	b = binary.BigEndian.AppendUint32(b, job<<8)
	b = append(b, 0x02, 0x4d, 0x47, 0, 0, 2, 0x02, 0x4d, 0x47, 0, 0, 1, 0x08, 0x00) // Ethernet
	ip := []byte{0x45, 0, 0, 0, 0, 0, 0, 0, 64, unix.IPPROTO_UDP, 0, 0, 10, 88, 0, 1, 10, 88, 0, 2}
	binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)+8+size))
	sum := uint32(0)
	for i := 0; i < len(ip); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	binary.BigEndian.PutUint16(ip[10:], ^uint16(sum+sum>>16))
	b = append(b, ip...)
	b = binary.BigEndian.AppendUint16(b, 9999)
	b = binary.BigEndian.AppendUint16(b, 9999)
	b = binary.BigEndian.AppendUint16(b, uint16(8+size))
	b = append(b, 0, 0) // no checksum
	return append(b, "forged "+strings.Repeat("x", size-7)...)
}

// attackNetwork VICTIM tries to get packets into the network of job VICTIM on rank 1's node: from
// the socket of its mirrored channels, whole, in fragments and to all nodes, and from its own job's
// network, whose addresses are the same. Then it asks for the hardware addresses of thousands of
// nodes.
func attackNetwork(args []string) error {
	job, err := strconv.ParseUint(args[0], 10, 32)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 8*time.Second)
	defer cancel()
	w, err := newWired(ctx)
	if w == nil {
		if errors.Is(err, context.DeadlineExceeded) {
			return nil
		}
		return err
	}
	fd := int(w.socket.Fd())
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BROADCAST, 1); err != nil {
		return err
	}
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DONT)
	to := unix.SockaddrInet4{Port: 478}
	binary.BigEndian.PutUint32(to.Addr[:], w.mirror.Address)
	for _, size := range []int{20, 4000} { // the second in fragments
		for _, address := range [][4]byte{to.Addr, {10, 66, 255, 255}, {255, 255, 255, 255}, {224, 0, 0, 1}} {
			err := unix.Sendto(fd, forged(uint32(job), size), 0, &unix.SockaddrInet4{Port: to.Port, Addr: address})
			fmt.Printf("%d bytes to %v: %v\n", size, address, err)
		}
	}
	own, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return err
	}
	err = unix.Sendto(own, []byte("from another job"), 0, &unix.SockaddrInet4{Port: 9999, Addr: [4]byte{10, 88, 0, 2}})
	fmt.Println("from another job:", err)
	return askForNeighbours(own)
}

// askForNeighbours sends to addresses of the job's network that no node has, past the routes, and
// prints how many Linux asks for.
func askForNeighbours(fd int) error {
	if err := unix.SetsockoptString(fd, unix.SOL_SOCKET, unix.SO_BINDTODEVICE, "eth0"); err != nil {
		return err
	}
	for n := range 5000 {
		_ = unix.Sendto(fd, []byte("x"), 0, &unix.SockaddrInet4{Port: 9, Addr: [4]byte{10, 88, 100 + byte(n>>8), byte(n)}})
	}
	table, err := os.ReadFile("/proc/net/arp")
	fmt.Printf("neighbours: %d\n", strings.Count(string(table), "\n")-1)
	return err
}
