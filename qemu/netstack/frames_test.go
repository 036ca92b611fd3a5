package netstack

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"margay/qemu/ether"
)

// raw is a hand-made station 2 opposite a stack, station 1.
type raw struct {
	t    *testing.T
	conn net.Conn
	r    *ether.Reader
}

func newRaw(t *testing.T) (*raw, *Stack) {
	conn, far := pair(t)
	far.SetDeadline(time.Now().Add(patience))
	return &raw{t, far, ether.NewReader(far)}, start(t, conn, config(1))
}

func (r *raw) send(kind uint16, payload []byte) {
	r.t.Helper()
	dst, src := mac(1), mac(2)
	f := binary.BigEndian.AppendUint16(slices.Concat(dst[:], src[:]), kind)
	if _, err := r.conn.Write(ether.Append(nil, append(f, payload...))); err != nil {
		r.t.Fatal(err)
	}
}

func arpPacket(op byte, fromMAC ether.MAC, from netip.Addr, toMAC ether.MAC, to netip.Addr) []byte {
	return slices.Concat([]byte{0, 1, 8, 0, 6, 4, 0, op}, fromMAC[:], from.AsSlice(), toMAC[:], to.AsSlice())
}

// sum is the checksum of RFC 1071.
func sum(b []byte) uint16 {
	var s uint32
	for i := 0; i < len(b); i += 2 {
		s += uint32(b[i])<<8 | uint32(b[i+1])
	}
	for s>>16 != 0 {
		s = s&0xffff + s>>16
	}
	return ^uint16(s)
}

func TestARPAndPing(t *testing.T) {
	r, s := newRaw(t)
	r.send(0x0806, arpPacket(1, mac(2), address(2), ether.MAC{}, address(1)))
	f, err := r.r.Next()
	if want := arpPacket(2, mac(1), address(1), mac(2), address(2)); err != nil || !bytes.Equal(f[ether.HeaderLen:], want) {
		t.Fatalf("answer to ARP: %x, %v; want %x", f, err, want)
	}
	icmp := []byte{8, 0, 0, 0, 0, 1, 0, 1, 'p', 'i', 'n', 'g'}
	binary.BigEndian.PutUint16(icmp[2:], sum(icmp))
	ip := slices.Concat([]byte{0x45, 0, 0, 32, 0, 0, 0, 0, 64, 1, 0, 0}, address(2).AsSlice(), address(1).AsSlice())
	binary.BigEndian.PutUint16(ip[10:], sum(ip))
	r.send(0x0800, slices.Concat(ip, icmp))
	for {
		f, err := r.r.Next()
		if err != nil {
			t.Fatal("answer to ping: ", err)
		}
		if f[12] == 8 && f[13] == 6 {
			// The stack asks for the address before it answers.
			r.send(0x0806, arpPacket(2, mac(2), address(2), mac(1), address(1)))
			continue
		}
		if ether.Source(f) != mac(1) || f[ether.HeaderLen+20] != 0 || string(f[len(f)-4:]) != "ping" {
			t.Fatalf("answer to ping: %x", f)
		}
		break
	}
	if s.Malformed() != 0 {
		t.Errorf("malformed: %d", s.Malformed())
	}
}

func TestMalformedFramesAreCounted(t *testing.T) {
	r, s := newRaw(t)
	r.conn.Write(ether.Append(nil, []byte("runt")))
	r.send(0x0800, []byte{0x45})                          // no IPv4 header
	r.send(0x0800, bytes.Repeat([]byte{0x4f}, 20))        // header longer than the packet
	r.send(0x0806, []byte{0, 1, 8})                       // no ARP packet
	r.send(0x86dd, []byte("a protocol that is not here")) // not malformed
	r.send(0x0806, arpPacket(1, mac(2), address(2), ether.MAC{}, address(1)))
	if f, err := r.r.Next(); err != nil || f[ether.HeaderLen+7] != 2 {
		t.Fatalf("the stack does not answer any more: %x, %v", f, err)
	}
	if got := s.Malformed(); got != 4 {
		t.Errorf("%d malformed frames counted, want 4", got)
	}
}

// FuzzFrames checks that no frame harms the stack: it answers an ARP request after each one.
func FuzzFrames(f *testing.F) {
	f.Add([]byte("runt"))
	dst, src := mac(1), mac(2)
	header := slices.Concat(dst[:], src[:])
	f.Add(slices.Concat(header, []byte{8, 6}, arpPacket(1, mac(2), address(2), ether.MAC{}, address(1))))
	ip := slices.Concat([]byte{0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0x66, 0x25}, address(2).AsSlice(), address(1).AsSlice())
	f.Add(slices.Concat(header, []byte{8, 0}, ip, []byte{1, 1, 2, 0xbc, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 2, 1, 0, 0, 0, 0, 0}))
	f.Fuzz(func(t *testing.T, frame []byte) {
		if len(frame) == 0 || len(frame) > ether.MaxFrame {
			t.Skip("no frame")
		}
		r, s := newRaw(t)
		listen(t, s, 700)
		if _, err := r.conn.Write(ether.Append(nil, frame)); err != nil {
			t.Fatal(err)
		}
		r.send(0x0806, arpPacket(1, mac(9), address(9), ether.MAC{}, address(1)))
		want := arpPacket(2, mac(1), address(1), mac(9), address(9))
		for {
			answer, err := r.r.Next()
			if err != nil {
				t.Fatal(err)
			}
			if bytes.Equal(answer[ether.HeaderLen:], want) {
				return
			}
		}
	})
}

// datagram is an IPv4 packet with a UDP datagram, without a checksum of the latter.
func datagram(from, to netip.AddrPort, text string) []byte {
	udp := binary.BigEndian.AppendUint16(nil, from.Port())
	udp = binary.BigEndian.AppendUint16(udp, to.Port())
	udp = binary.BigEndian.AppendUint16(udp, uint16(8+len(text)))
	ip := slices.Concat([]byte{0x45, 0, 0, byte(28 + len(text)), 0, 0, 0, 0, 64, 17, 0, 0}, from.Addr().AsSlice(), to.Addr().AsSlice())
	binary.BigEndian.PutUint16(ip[10:], sum(ip))
	return slices.Concat(ip, udp, []byte{0, 0}, []byte(text))
}

// A station without an address reaches the stack, which answers it although it answers no ARP, and
// can also answer all.
func TestDatagrams(t *testing.T) {
	conn, far := pair(t)
	far.SetDeadline(time.Now().Add(patience))
	cfg := config(1)
	cfg.Neighbors = map[netip.Addr]ether.MAC{address(2): mac(2)}
	r, s := &raw{t, far, ether.NewReader(far)}, start(t, conn, cfg)
	p, err := s.ListenPacket(67)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if _, err := s.ListenPacket(67); err == nil {
		t.Error("a port was opened twice")
	}
	all := netip.MustParseAddr("255.255.255.255")
	r.send(0x0800, datagram(netip.AddrPortFrom(netip.IPv4Unspecified(), 68), netip.AddrPortFrom(all, 67), "who am I"))
	b := make([]byte, 100)
	p.SetReadDeadline(time.Now().Add(patience))
	if n, from, err := p.ReadFrom(b); err != nil || string(b[:n]) != "who am I" || from.String() != "0.0.0.0:68" {
		t.Fatalf("%q from %v, %v", b[:n], from, err)
	}
	for _, c := range []struct {
		to  netip.Addr
		mac ether.MAC
	}{{address(2), mac(2)}, {all, ether.Broadcast}} {
		if _, err := p.WriteTo([]byte("station 2"), net.UDPAddrFromAddrPort(netip.AddrPortFrom(c.to, 68))); err != nil {
			t.Fatal(err)
		}
		f, err := r.r.Next()
		if err != nil || ether.Destination(f) != c.mac || f[12] != 8 || f[13] != 0 || string(f[len(f)-9:]) != "station 2" {
			t.Fatalf("%x, %v", f, err)
		}
		if from := netip.AddrFrom4([4]byte(f[ether.HeaderLen+12:])); from != address(1) {
			t.Errorf("the answer comes from %v", from)
		}
	}
}

// A frame of the caller's goes out as it is.
func TestSend(t *testing.T) {
	r, s := newRaw(t)
	frame := append(make([]byte, ether.HeaderLen), "any frame"...)
	if err := s.Send(frame); err != nil {
		t.Fatal(err)
	}
	if got, err := r.r.Next(); err != nil || !bytes.Equal(got, frame) {
		t.Errorf("%x, %v", got, err)
	}
	if s.Send(frame[:ether.HeaderLen-1]) == nil || s.Send(make([]byte, ether.MaxFrame+1)) == nil {
		t.Error("a frame of the wrong length was accepted")
	}
	s.Close()
	if s.Send(frame) == nil {
		t.Error("a frame was sent after the end")
	}
}
