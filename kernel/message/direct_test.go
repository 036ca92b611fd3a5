package message

import (
	"bytes"
	"encoding/binary"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"margay/internal/check"
	"margay/kernel/abi/onesided"
	"margay/kernel/abi/wire"
)

// asker is a rank that asks the node kernel of another rank for operations on its windows, as a
// library does.
type asker struct {
	*farRank
	*onesided.Requester
	answers map[uint64][]byte
	refused int
}

func newAsker(f *farRank) *asker {
	f.t.Helper()
	if f.own.Windows == 0 {
		f.t.Fatal("the other node kernel takes no requests")
	}
	pair := onesided.Pair{Source: 1 - f.own.Rank, Target: f.own.Rank}
	return &asker{f, onesided.NewRequester(onesided.Peer{Pair: pair, Key: f.own.PeerKey, Largest: int(f.own.Largest)}), make(map[uint64][]byte), 0}
}

// finish waits until all requests are answered.
func (a *asker) finish() {
	a.t.Helper()
	to := &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}, Port: int(a.own.Windows)}
	b := make([]byte, onesided.Most)
	check.Await(a.t, "answers", func() bool {
		now := time.Since(a.start)
		for d := a.Requester.Emit(now); len(d) > 0; d = a.Requester.Emit(now) {
			for _, b := range d {
				if !a.ToKernel() {
					break // there is no library
				}
				_ = unix.Sendto(a.socket, b, unix.MSG_DONTWAIT, to)
			}
		}
		for {
			n, _, err := unix.Recvfrom(a.socket, b, unix.MSG_DONTWAIT)
			if err != nil {
				return a.Idle()
			}
			if answer, data, err := onesided.ParseAnswer(b[:n]); err == nil && answer.Key == a.own.Key {
				a.Requester.Arrive(&answer, data, false, time.Since(a.start), func(number uint64, status wire.RemoteStatus, data []byte) {
					if a.answers[number] = bytes.Clone(data); status != wire.RemoteOK {
						a.refused++
					}
				})
			}
		}
	})
}

// Operations on a window by datagrams take effect once, while the node kernels of both sides
// restart. No messages pass the node kernels.
func TestWindowsByDatagrams(t *testing.T) {
	j, f, b := openFar(t)
	a := newAsker(f)
	memory := b.window(2, 1, 1<<16)
	word := (*atomic.Uint64)(unsafe.Pointer(&memory[0]))
	passed := j.sent(0, 1)
	const rounds, each = 6, 20
	for round := range rounds {
		data := bytes.Repeat([]byte{byte(1 + round)}, 1000)
		a.Add(onesided.Request{Kind: wire.RemotePut, Window: 2, Offset: 64, Length: 1000}, data)
		var numbers []uint64
		for range each {
			numbers = append(numbers, a.Add(onesided.Request{Kind: wire.RemoteAdd, Window: 2, Length: 8}, le(1)))
		}
		a.finish()
		for i, number := range numbers {
			if old := binary.LittleEndian.Uint64(a.answers[number]); old != uint64(round*each+i) {
				t.Errorf("access %d of round %d has found %d", i, round, old)
			}
		}
		got := a.Add(onesided.Request{Kind: wire.RemoteGet, Window: 2, Offset: 64, Length: 1000}, nil)
		if a.finish(); !bytes.Equal(a.answers[got], data) {
			t.Errorf("round %d gets other bytes", round)
		}
		j.restart(round % 2)
	}
	if n := word.Load(); n != rounds*each || a.refused > 0 {
		t.Errorf("the count is %d, %d requests are refused", n, a.refused)
	}
	if n := j.sent(0, 1); n != passed {
		t.Errorf("%d messages have passed the node kernels", n-passed)
	}
	j.noFault()
}

// A request in the socket of a rank that computes takes effect, once, although the rank that has
// asked computes, too. The rank gets all that is in its socket later.
func TestBothCompute(t *testing.T) {
	j, f, b := openFar(t)
	a := newAsker(f)
	memory := b.window(2, 1, 4096)
	to := &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}, Port: int(f.own.Port)}
	a.Add(onesided.Request{Kind: wire.RemotePut, Window: 2, Offset: 64, Length: 8}, le(7))
	a.Add(onesided.Request{Kind: wire.RemoteAdd, Window: 2, Length: 8}, le(1))
	var sent [][]byte
	send := func(b []byte) {
		t.Helper()
		if sent = append(sent, bytes.Clone(b)); unix.Sendto(f.socket, b, 0, to) != nil {
			t.Fatal("a datagram is not sent")
		}
	}
	emit := func() {
		for d := a.Requester.Emit(0); len(d) > 0; d = a.Requester.Emit(0) {
			for _, b := range d {
				send(b)
			}
		}
	}
	word := (*atomic.Uint64)(unsafe.Pointer(&memory[0]))
	send([]byte("a message, or a datagram of a stranger"))
	emit()
	check.Await(t, "the event", func() bool { return word.Load() > 0 })
	if !bytes.Equal(memory[64:72], le(7)) {
		t.Errorf("the event is counted before the put, which has left %x", memory[64:72])
	}
	j.restart(1) // whose successor finds all again
	a.Add(onesided.Request{Kind: wire.RemoteAdd, Window: 2, Length: 8}, le(10))
	emit()
	check.Await(t, "another event", func() bool { return word.Load() > 10 })
	got := make([]byte, onesided.Most)
	for i, want := range sent {
		if n, _, err := unix.Recvfrom(b.socket, got, unix.MSG_DONTWAIT); err != nil || !bytes.Equal(got[:n], want) {
			t.Errorf("datagram %d for the rank is %x, %v", i, got[:n], err)
		}
	}
	if a.finish(); word.Load() != 11 || len(a.answers) != 3 || binary.LittleEndian.Uint64(a.answers[3]) != 1 {
		t.Errorf("the count is %d, answers %x", word.Load(), a.answers)
	}
	j.noFault()
}

// A rank that ends in the middle of a request leaves its windows to its node kernel, also to one
// that was started since.
func TestEndsAtWork(t *testing.T) {
	for _, restarts := range []bool{false, true} {
		j, f, b := openFar(t)
		a := newAsker(f)
		b.window(0, 1, 4096)
		a.Add(onesided.Request{Kind: wire.RemoteAdd, Length: 8}, le(1))
		a.finish()
		server := (*atomic.Uint64)(unsafe.Pointer(&j.nodes[1].job.channels.Peerings()[0].Journal[0]))
		server.Store(uint64(onesided.ByRank))
		if restarts {
			j.restart(1)
		}
		j.nodes[1].job.Ended(1)
		a.Add(onesided.Request{Kind: wire.RemotePut, Length: 8}, le(1))
		a.finish()
		j.noFault()
	}
}

// Each atomic access wakes the window's rank if it sleeps.
func TestDatagramsWake(t *testing.T) {
	j, f, b := openFar(t)
	a := newAsker(f)
	b.window(0, 1, 4096)
	for range 50 { // more often than anything else rings
		b.quiet()
		b.area.ReceiveWaiting().Store(1)
		a.Add(onesided.Request{Kind: wire.RemoteAdd, Length: 8}, le(1))
		a.finish()
		if !b.awaitRing(time.Minute) {
			t.Fatal("the rank is not woken")
		}
	}
	j.noFault()
}
