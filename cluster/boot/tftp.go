package boot

import (
	"errors"
	"net"
	"net/netip"
	"time"

	"margay/cluster/boot/tftp"
)

// maxTransfers is more than the number of hosts. Each host has one transfer.
const maxTransfers = 2048

// serveTFTP sends the first file of firmware until the connection is closed.
func (s *Services) serveTFTP(conn net.PacketConn) error {
	server := tftp.New(s.first, maxTransfers)
	ticked := time.Now()
	tick := func() {
		now := time.Now()
		if now.Sub(ticked) >= tftp.RetryAfter/2 {
			ticked = now
			for _, a := range server.Tick(now) {
				s.send(conn, a)
			}
		}
		var next time.Time // none
		if server.Busy() {
			next = now.Add(tftp.RetryAfter / 2)
		}
		_ = conn.SetReadDeadline(next) // fails only on a connection that is closed, which the next read notices
	}
	return Receive(conn, tftp.MaxDatagram+1, func(datagram []byte, from netip.AddrPort) {
		defer tick() // a flood would put it off
		if _, known := s.host(from.Addr()); !known {
			s.log.Printf("boot: TFTP: %v is not a node", from)
			return
		}
		a, err := server.Handle(time.Now(), from, datagram)
		if err != nil {
			s.log.Printf("boot: TFTP: a datagram of %d bytes from %v is ignored: %v", len(datagram), from, err)
			return
		}
		s.send(conn, a)
	}, tick)
}

// send sends an answer of the TFTP server, and reports what it says of the node.
func (s *Services) send(conn net.PacketConn, a tftp.Answer) {
	if a.Packet != nil {
		if _, err := conn.WriteTo(a.Packet, net.UDPAddrFromAddrPort(a.To)); err != nil {
			s.log.Printf("boot: TFTP: answer to %v: %v", a.To, err)
		}
	}
	host, known := s.host(a.To.Addr())
	switch {
	case !known: // it was removed
	case a.Refusal != "":
		s.log.Printf("boot: %v: TFTP: %s", host, a.Refusal)
	case a.Name != "":
		s.reached(host, Status{Stage: Loader, Percent: int(a.Done * 100 / max(1, s.first[a.Name].Size))})
	}
}

// Receive gives datagrams of at most so many bytes to take until the connection is closed, and
// calls late, if there is one, when its deadline is over.
func Receive(conn net.PacketConn, most int, take func(datagram []byte, from netip.AddrPort), late func()) error {
	buf := make([]byte, most)
	for failed := 0; ; {
		n, from, err := conn.ReadFrom(buf)
		if err != nil {
			if timeout := net.Error(nil); late != nil && errors.As(err, &timeout) && timeout.Timeout() {
				late()
				continue
			}
			if failed++; errors.Is(err, net.ErrClosed) || failed == maxFailed {
				return err
			}
			time.Sleep(pause)
			continue
		}
		failed = 0
		var sender netip.AddrPort
		if udp, ok := from.(*net.UDPAddr); ok {
			sender = netip.AddrPortFrom(udp.AddrPort().Addr().Unmap(), udp.AddrPort().Port())
		}
		take(buf[:n], sender)
	}
}

// pause follows an error of a connection that is not its end.
const pause = 100 * time.Millisecond

// maxFailed is the number of errors in a row after which a connection is given up.
const maxFailed = 10
