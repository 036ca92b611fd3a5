package train

import (
	"bytes"
	"testing"

	"golang.org/x/sys/unix"
)

// socket opens a socket of this host and returns its address.
func socket(t *testing.T) (int, *unix.SockaddrInet4) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return fd, name.(*unix.SockaddrInet4)
}

// Datagrams come as they were sent, with trains on both sides, on one, and on none.
func TestTrains(t *testing.T) {
	for name, c := range map[string]struct{ alone, single bool }{
		"trains": {}, "refused to the sender": {alone: true}, "refused to the receiver": {single: true}, "refused to both": {true, true},
	} {
		t.Run(name, func(t *testing.T) {
			from, address := socket(t)
			to, target := socket(t)
			s, r := NewSender(from), NewReceiver(to)
			s.alone = c.alone
			if c.single {
				if err := unix.SetsockoptInt(to, unix.SOL_UDP, unix.UDP_GRO, 0); err != nil {
					t.Fatal(err)
				}
			}
			for _, n := range []int{1, 2, 7, 40} {
				var sent [][]byte
				for i := range n {
					sent = append(sent, bytes.Repeat([]byte{byte(i)}, 1400))
				}
				sent[n-1] = sent[n-1][:1+n]
				s.Send(sent, target)
				for got := 0; got < n; {
					datagrams, source, err := r.Receive(0)
					if err != nil || source.Port != address.Port {
						t.Fatalf("datagram %d of %d: from %v, %v", got, n, source, err)
					}
					for b := range datagrams {
						if !bytes.Equal(b, sent[got]) {
							t.Fatalf("datagram %d of %d has %d bytes, not %d", got, n, len(b), len(sent[got]))
						}
						got++
					}
				}
			}
		})
	}
}

// An empty datagram has no datagrams in it, and does not wait for others.
func TestEmpty(t *testing.T) {
	fd, address := socket(t)
	NewSender(fd).Send([][]byte{{}}, address)
	datagrams, _, err := NewReceiver(fd).Receive(0)
	if err != nil {
		t.Fatal(err)
	}
	for b := range datagrams {
		t.Errorf("%x", b)
	}
	if _, _, err := NewReceiver(fd).Receive(unix.MSG_DONTWAIT); err != unix.EAGAIN {
		t.Errorf("an empty socket: %v", err)
	}
}

// Trains that were peeked stay in the socket, in order, also behind an empty datagram, for the next
// look, and for a receiver.
func TestPeek(t *testing.T) {
	from, address := socket(t)
	fd, target := socket(t)
	s, r := NewSender(from), NewReceiver(fd)
	s.Send([][]byte{{1, 1}, {2}}, target)
	s.Send([][]byte{{}}, target)
	s.Send([][]byte{{3, 3, 3}}, target)
	peek := func(most int) (all []byte) {
		t.Helper()
		for source, datagrams := range NewReceiver(fd).Peek(most) {
			if source.Port != address.Port {
				t.Errorf("a train from %v", source)
			}
			for b := range datagrams {
				all = append(all, b[0])
			}
		}
		return all
	}
	if all := peek(100); !bytes.Equal(all, []byte{1, 2, 3}) {
		t.Errorf("the first look finds %v", all)
	}
	if all := peek(1); len(all) == 0 || all[0] != 1 || all[len(all)-1] == 3 {
		t.Errorf("one train has %v", all)
	}
	var got []byte
	for len(got) < 2 {
		datagrams, _, err := r.Receive(unix.MSG_DONTWAIT)
		if err != nil {
			t.Fatal(err)
		}
		for b := range datagrams {
			got = append(got, b[0])
		}
	}
	if all := peek(100); !bytes.Equal(got, []byte{1, 2}) || !bytes.Equal(all, []byte{3}) {
		t.Errorf("%v are received, and %v are left", got, all)
	}
}
