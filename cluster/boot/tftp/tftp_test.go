package tftp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"margay/internal/check"
)

var start = time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC)

// client is the address of a client.
func client(n, port int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 66, 1, byte(n)}), uint16(port))
}

// rrq is a request for a file; the texts are its mode and its options.
func rrq(name string, texts ...string) []byte {
	return append([]byte{0, opRead}, strings.Join(append([]string{name}, texts...), "\x00")+"\x00"...)
}

func ack(block int) []byte {
	return binary.BigEndian.AppendUint16([]byte{0, opAcknowledge}, uint16(block))
}

// broken is a file that cannot be read.
type broken struct{}

func (broken) ReadAt([]byte, int64) (int, error) { return 0, errors.New("the disk is gone") }

// sizes are the sizes of files, which are their names.
var sizes = []int{0, 1, 511, 512, 513, 1024, 5000, 1468, 2936}

func content(size int) []byte {
	b := make([]byte, size)
	for i := range b {
		b[i] = byte(i*7 + i>>8)
	}
	return b
}

func server(most int) *Server {
	files := map[string]File{"broken": {broken{}, 9}, "huge": {broken{}, 600 * maxBlocks}}
	for _, size := range sizes {
		files[fmt.Sprint(size)] = File{bytes.NewReader(content(size)), int64(size)}
	}
	return New(files, most)
}

// handle gives a server a datagram that a client may send.
func handle(t *testing.T, s *Server, from netip.AddrPort, datagram []byte) Answer {
	t.Helper()
	a, err := s.Handle(start, from, datagram)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestFiles(t *testing.T) {
	for _, size := range sizes {
		for _, options := range [][]string{nil, {"blksize", "1468"}, {"BLKSIZE", "65464", "tsize", "0"}, {"tsize", "0", "windowsize", "4"}, {"blksize", "8"}} {
			s, from := server(1), client(1, 2000)
			a := handle(t, s, from, rrq(fmt.Sprint("/", size), append([]string{"octet"}, options...)...))
			block, acknowledged := DefaultBlock, "\x00\x06"
			for i := 0; i < len(options); i += 2 {
				switch {
				case strings.ToLower(options[i]) == "blksize" && options[i+1] != "8":
					block = MaxBlock
					acknowledged += "blksize\x001468\x00"
				case options[i] == "tsize":
					acknowledged += fmt.Sprintf("tsize\x00%d\x00", size)
				}
			}
			if acknowledged != "\x00\x06" {
				if string(a.Packet) != acknowledged || a.To != from {
					t.Fatalf("%d, %q: %+v, want %q", size, options, a, acknowledged)
				}
				a = handle(t, s, from, ack(0))
			}
			var got []byte
			for n := 1; ; n++ {
				if len(a.Packet) < 4 || string(a.Packet[:4]) != string([]byte{0, opData, byte(n >> 8), byte(n)}) || a.Name != fmt.Sprint(size) || a.Done != int64(len(got)) {
					t.Fatalf("%d, %q: block %d: %+v", size, options, n, a)
				}
				got = append(got, a.Packet[4:]...)
				last := len(a.Packet) < 4+block
				a = handle(t, s, from, ack(n))
				if last {
					break
				}
			}
			if !bytes.Equal(got, content(size)) || a.Packet != nil || a.Done != int64(size) || s.Busy() {
				t.Errorf("%d, %q: got %d bytes, at the end %+v", size, options, len(got), a)
			}
		}
	}
}

func TestRefusals(t *testing.T) {
	for _, c := range []struct {
		name     string
		datagram []byte
		code     byte
		why      string
	}{
		{"absent", rrq("absent", "octet"), codeNotFound, `it asks for "absent", which does not exist`},
		{"above", rrq("../../etc/passwd", "octet"), codeNotFound, `"../../etc/passwd", which does not exist`},
		{"absolute", rrq("/etc/passwd", "octet"), codeNotFound, "does not exist"},
		{"twice absolute", rrq("//512", "octet"), codeNotFound, "does not exist"},
		{"through a folder", rrq("x/../512", "octet"), codeNotFound, "does not exist"},
		{"case", rrq("HUGE", "octet"), codeNotFound, "does not exist"},
		{"text", rrq("512", "netascii"), codeIllegal, "there is only octet"},
		{"write", append([]byte{0, opWrite}, "512\x00octet\x00"...), codeForbidden, "nothing can be written here"},
		{"unreadable", rrq("broken", "octet"), codeOther, "broken: the disk is gone"},
		{"too long", rrq("huge", "octet"), codeOther, "huge is too long for blocks of 512 bytes"},
	} {
		s := server(1)
		a := handle(t, s, client(1, 2000), c.datagram)
		want := "\x00\x05\x00" + string(c.code) + a.Refusal + "\x00"
		if !strings.Contains(a.Refusal, c.why) || string(a.Packet) != want || s.Busy() {
			t.Errorf("%s: %q, %+v", c.name, a.Packet, a)
		}
	}
	for name, datagram := range map[string][]byte{
		"nothing": {}, "one byte": {0}, "data": {0, opData, 0, 1, 5}, "options": {0, opOptions}, "operation 0": {0, 0}, "short acknowledgement": {0, opAcknowledge, 1},
		"long acknowledgement": append(ack(1), 0), "no name": rrq("", "octet"), "no mode": rrq("512"), "no end": rrq("512", "octet")[:8],
		"option without a value": rrq("512", "octet", "tsize"), "option twice": rrq("512", "octet", "tsize", "0", "TSIZE", "0"),
		"long": rrq(strings.Repeat("x", MaxDatagram), "octet"),
	} {
		if a, err := server(1).Handle(start, client(1, 2000), datagram); err != ErrDatagram || a.Packet != nil {
			t.Errorf("%s: %+v, %v", name, a, err)
		}
	}
}

// A client has one transfer, and there are so many clients.
func TestTransfersAreBounded(t *testing.T) {
	s := server(2)
	request := rrq("5000", "octet")
	handle(t, s, client(1, 2000), request)
	handle(t, s, client(1, 2001), request)
	if a := handle(t, s, client(1, 2000), ack(1)); a.Packet != nil {
		t.Errorf("the transfer before goes on: %+v", a)
	}
	if a := handle(t, s, client(1, 2001), ack(1)); a.Packet == nil {
		t.Error("the new transfer does not go on")
	}
	handle(t, s, client(2, 2000), request)
	if a := handle(t, s, client(3, 2000), request); a.Refusal != "2 clients are served already" || len(s.transfers) != 2 {
		t.Errorf("a third client: %+v", a)
	}
	handle(t, s, client(1, 2000), []byte{0, opError, 0, 0, 0}) // of a transfer that is over
	if len(s.transfers) != 2 {
		t.Error("an error of another port ends the transfer")
	}
	handle(t, s, client(1, 2001), []byte{0, opError, 0, 8, 0})
	if a := handle(t, s, client(3, 2000), request); a.Refusal != "" {
		t.Errorf("a third client after the first has ended: %+v", a)
	}
}

// A client that is gone is given up, and so is one that never comes to an end. Before that, lost
// datagrams are sent again.
func TestTime(t *testing.T) {
	s, from := server(1), client(1, 2000)
	first := handle(t, s, from, rrq("5000", "octet"))
	tries, now := 1, start
	for s.Busy() {
		now = now.Add(RetryAfter / 2)
		for _, a := range s.Tick(now) {
			if tries++; tries <= MaxTries && !bytes.Equal(a.Packet, first.Packet) || tries > MaxTries && a.Refusal != "it does not acknowledge block 1 of 5000" {
				t.Errorf("try %d: %+v", tries, a)
			}
		}
	}
	if tries != MaxTries+1 || now.Sub(start) != MaxTries*RetryAfter {
		t.Errorf("%d tries in %v", tries, now.Sub(start))
	}
	handle(t, s, from, rrq("5000", "octet"))
	if a := s.Tick(start.Add(MaxTime)); len(a) != 1 || a[0].Refusal != "it has not fetched 5000 within 5m0s" || s.Busy() {
		t.Errorf("after a long time: %+v", a)
	}
}

// A copy of a request that is late does not begin the transfer again, and a client that does is
// served from the begin.
func TestSameRequest(t *testing.T) {
	s, from, request := server(1), client(1, 2000), rrq("5000", "octet")
	first := handle(t, s, from, request)
	if a := handle(t, s, from, request); !bytes.Equal(a.Packet, first.Packet) {
		t.Errorf("a copy at once: %+v", a)
	}
	handle(t, s, from, ack(1))
	if a := handle(t, s, from, request); a.Packet != nil {
		t.Errorf("a late copy: %+v", a)
	}
	s.Tick(start.Add(RetryAfter))
	if a := handle(t, s, from, request); !bytes.Equal(a.Packet, first.Packet) {
		t.Errorf("a new begin: %+v", a)
	}
}

// Clients that lose, repeat and delay datagrams in either direction get their files whole, beside
// strangers that send garbage in no order.
func TestModel(t *testing.T) {
	random := rand.New(rand.NewPCG(check.Seed(t), 0))
	for range 100 {
		model(t, random)
	}
}

func model(t *testing.T, random *rand.Rand) {
	const clients = 4
	s := server(clients)
	type side struct {
		size, at int
		got      []byte
		whole    bool
		asks     bool // its request has no answer yet
		waits    int  // how often the time has passed without progress
	}
	const patience = 20
	peers := make(map[netip.AddrPort]*side)
	for n := range clients {
		peers[client(n, 2000)] = &side{size: sizes[random.IntN(len(sizes))], asks: true}
	}
	type datagram struct {
		from   netip.AddrPort
		packet []byte
	}
	var up []datagram
	var down []Answer
	now := start
	order := slices.SortedFunc(maps.Keys(peers), netip.AddrPort.Compare)
	done := 0
	for step := 0; done < clients; step++ {
		if step > 1_000_000 {
			t.Fatalf("%d of %d clients have their files", done, clients)
		}
		switch random.IntN(8) {
		case 0: // the time passes, and clients ask again, some from the begin
			now = now.Add(RetryAfter / 3)
			down = append(down, s.Tick(now)...)
			for _, from := range order {
				p := peers[from]
				if p.waits++; p.waits > patience && !p.whole {
					*p = side{size: p.size, asks: true}
				}
				if p.asks && random.IntN(4) == 0 {
					up = append(up, datagram{from, rrq(fmt.Sprint(p.size), "octet", "blksize", "600", "tsize", "0")})
				}
			}
		case 1: // a stranger
			garbage := make([]byte, random.IntN(12))
			for i := range garbage {
				garbage[i] = byte(random.IntN(8))
			}
			up = append(up, datagram{client(random.IntN(clients), 3000), append(garbage, make([]byte, random.IntN(2))...)})
		case 2, 3, 4:
			if len(up) == 0 {
				continue
			}
			i := random.IntN(len(up))
			d := up[i]
			if random.IntN(5) > 0 { // else it arrives again later
				up = slices.Delete(up, i, i+1)
			}
			if random.IntN(8) == 0 {
				continue // it is lost
			}
			if a, err := s.Handle(now, d.from, d.packet); err == nil && a.Packet != nil {
				down = append(down, a)
			}
		default:
			if len(down) == 0 {
				continue
			}
			a := down[0]
			down = down[1:]
			p := peers[a.To]
			if p == nil || random.IntN(8) == 0 {
				continue
			}
			operation := binary.BigEndian.Uint16(a.Packet)
			switch {
			case p.whole:
				if operation == opData { // the last acknowledgement was lost
					up = append(up, datagram{a.To, ack(int(binary.BigEndian.Uint16(a.Packet[2:])))})
				}
			case operation == opError:
				if !strings.HasPrefix(a.Refusal, "it does not acknowledge") {
					t.Fatalf("step %d: %v is refused: %+v", step, a.To, a)
				}
			case operation == opOptions:
				if want := fmt.Sprintf("\x00\x06blksize\x00600\x00tsize\x00%d\x00", p.size); string(a.Packet) != want {
					t.Fatalf("options %q, want %q", a.Packet, want)
				}
				if p.at == 0 {
					p.asks = false
					up = append(up, datagram{a.To, ack(0)})
				}
			default:
				block := int(binary.BigEndian.Uint16(a.Packet[2:]))
				if block == p.at+1 {
					p.at++
					p.waits = 0
					p.got = append(p.got, a.Packet[4:]...)
					if len(a.Packet) < 4+600 {
						p.whole = true
						done++
						if !bytes.Equal(p.got, content(p.size)) {
							t.Fatalf("step %d: %v has got %d bytes of %d, or others", step, a.To, len(p.got), p.size)
						}
					}
				}
				if block <= p.at {
					up = append(up, datagram{a.To, ack(block)})
				}
			}
		}
		if len(s.transfers) > clients {
			t.Fatalf("%d transfers", len(s.transfers))
		}
	}
}

// FuzzHandle: whatever arrives, at most one datagram is sent, to its sender and no longer than a
// frame; and the number of transfers is bounded.
func FuzzHandle(f *testing.F) {
	f.Add(rrq("5000", "octet"), ack(1), ack(2))
	f.Add(rrq("5000", "octet", "blksize", "1468", "tsize", "0"), ack(0), ack(1))
	f.Add(rrq("/512", "OCTET", "timeout", "1"), ack(1), []byte{0, opError, 0, 0, 0})
	f.Add(rrq("513", "octet", "blksize", "9999999999"), rrq("1", "octet"), ack(1))
	f.Fuzz(func(t *testing.T, a, b, c []byte) {
		s := server(1)
		for i, datagram := range [][]byte{a, b, c, b, a} {
			from := client(i%2, 2000)
			out, err := s.Handle(start.Add(time.Duration(i)*RetryAfter), from, datagram)
			if err != nil && out.Packet != nil || out.Packet != nil && out.To != from || len(out.Packet) > 4+MaxBlock {
				t.Errorf("%q: %+v, %v", datagram, out, err)
			}
			if len(s.transfers) > 1 {
				t.Errorf("%d transfers", len(s.transfers))
			}
		}
	})
}
