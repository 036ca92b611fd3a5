package boots

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"margay/cluster/boot"
)

// How often a station that disturbs does something.
const (
	slowPause    = time.Second
	strangePause = time.Second
)

// beSlow is a node that waits for its turn and fetches the image, a few bytes every second, until
// ctx ends.
func (w wire) beSlow(ctx context.Context, n int) {
	s := w.station(n, Card, new(counts))
	defer s.client.CloseIdleConnections()
	for ctx.Err() == nil {
		_, _ = s.get(ctx, "http://"+w.server.String()+boot.ScriptPath) // it gets its turn, or asks again
		conn, err := w.dial(ctx, addressOf(n))
		if err == nil {
			_, err = fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: x\r\n\r\n", imagePath)
		}
		for buf := make([]byte, 16); err == nil && ctx.Err() == nil; err = pause(ctx, slowPause) {
			if _, err = conn.Read(buf); err != nil {
				break
			}
		}
		if conn != nil {
			conn.Close()
		}
		_ = pause(ctx, slowPause) // an error is the end of ctx
	}
}

// disturb is a strange station: it holds a connection in which it asks nothing, and floods
// DHCP with questions of invented cards, until ctx ends.
func (w wire) disturb(ctx context.Context, n int) {
	questions, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(addressOf(n), 0)))
	if err != nil {
		return
	}
	defer questions.Close()
	var held net.Conn
	for i := 0; ctx.Err() == nil; i++ {
		if held == nil || ended(held) {
			held, _ = w.dial(ctx, addressOf(n)) // without one it tries again
		}
		mac := macOf(n)
		mac[0], mac[2], mac[3] = 2, byte(i>>8), byte(i)
		if d, err := dhcpv4.NewDiscovery(mac[:]); err == nil {
			_, _ = questions.WriteToUDPAddrPort(d.ToBytes(), netip.AddrPortFrom(w.server, w.dhcp)) // the next one follows
		}
		_ = pause(ctx, strangePause) // an error is the end of ctx
	}
	if held != nil {
		held.Close()
	}
}

// ended closes a connection that the other side has ended, and reports that.
func ended(c net.Conn) bool {
	c.SetReadDeadline(time.Now().Add(time.Millisecond))
	_, err := c.Read(make([]byte, 1))
	if late, ok := err.(net.Error); ok && late.Timeout() {
		return false
	}
	c.Close()
	return true
}

// dial connects to the HTTP service from an address, with room for little.
func (w wire) dial(ctx context.Context, from netip.Addr) (net.Conn, error) {
	conn, err := w.connect(ctx, from)
	if err != nil {
		return nil, err
	}
	_ = conn.(*net.TCPConn).SetReadBuffer(4096) // a larger one does as well
	return conn, nil
}
