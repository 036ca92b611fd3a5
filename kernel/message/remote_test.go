package message

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"margay/internal/check"
	"margay/kernel/abi/wire"
)

// postRemote sends a request about a window.
func (a *app) postRemote(target int, r wire.Remote, payload []byte) {
	a.t.Helper()
	check.Await(a.t, "room in the ring", func() bool {
		ok, wake, err := a.send.Push(wire.Record{Handler: wire.HandlerRemote, Peer: uint32(target), Args: r.Args(), Payload: payload})
		if err != nil {
			a.t.Fatal(err)
		}
		if wake {
			a.ring()
		}
		return ok
	})
}

// answered returns the next answer, which must be for a token.
func (a *app) answered(token uint32) (wire.Remote, []byte) {
	a.t.Helper()
	m, ok := a.next(time.Minute)
	if !ok || m.Handler != wire.HandlerRemote {
		a.t.Fatalf("no answer for %d: %+v", token, m)
	}
	r, err := wire.ParseRemote(m.Args, len(m.Payload))
	if err != nil || r.Kind != wire.RemoteReply || r.Token != token {
		a.t.Fatalf("answer %+v for %d: %v", r, token, err)
	}
	return r, m.Payload
}

// window makes a window of a rank and maps it.
func (a *app) window(number, rank, size int) []byte {
	a.t.Helper()
	reply, files := a.ask(wire.Request{Op: wire.OpRegion, Name: wire.WindowName(number, rank), Value: uint64(size)}, nil)
	if reply.Status != wire.StatusOK || len(files) != 1 {
		a.t.Fatalf("window: %+v", reply)
	}
	defer files[0].Close()
	memory, err := unix.Mmap(int(files[0].Fd()), 0, int(reply.Values[0]), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		a.t.Fatal(err)
	}
	a.t.Cleanup(func() { _ = unix.Munmap(memory) })
	return memory
}

// le returns numbers as bytes.
func le(numbers ...uint64) (b []byte) {
	for _, n := range numbers {
		b = binary.LittleEndian.AppendUint64(b, n)
	}
	return b
}

// Random requests about a window change it as they change a copy, in order, without its rank: the
// rank neither polls nor gets a message. No room stays taken.
func TestRemote(t *testing.T) {
	seed := check.Seed(t)
	for name, target := range map[string]int{"on the same node": 1, "on another node": 2} {
		t.Run(name, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, uint64(target)))
			j := open(t, 2, 2)
			a, b := j.join(0), j.join(target)
			const size = 8192
			memory, reference := b.window(3, target, size), make([]byte, size)
			for token := range uint32(check.Rounds(250, 1000)) {
				r := wire.Remote{Token: token, Kind: wire.RemoteKind(1 + random.IntN(4)), Window: 3}
				var payload, want []byte
				switch r.Kind {
				case wire.RemotePut, wire.RemoteGet:
					r.Length = uint16(1 + random.IntN(wire.MaxPayload))
					r.Offset = uint64(random.IntN(size - int(r.Length) + 1))
					at := reference[r.Offset:][:r.Length]
					if r.Kind == wire.RemoteGet {
						want = bytes.Clone(at)
						break
					}
					payload = make([]byte, r.Length)
					for i := range payload {
						payload[i] = byte(random.Uint32())
					}
					copy(at, payload)
				default:
					r.Offset = uint64(random.IntN(size/8)) * 8
					at := reference[r.Offset:]
					want = bytes.Clone(at[:8])
					old, value := binary.LittleEndian.Uint64(at), random.Uint64()
					payload, r.Length = le(value), 8
					if r.Kind == wire.RemoteAdd {
						copy(at, le(old+value))
						break
					}
					if random.IntN(2) == 0 {
						payload = le(old, value)
						copy(at, le(value))
					} else {
						payload = le(old+1, value)
					}
					r.Length = 16
				}
				a.postRemote(target, r, payload)
				if answer, data := a.answered(token); answer.Status != wire.RemoteOK || !bytes.Equal(data, want) {
					t.Fatalf("%+v is answered by %+v, %x, not %x", r, answer, data, want)
				}
			}
			if !bytes.Equal(memory, reference) {
				t.Error("the memory is another one")
			}
			if m, ok := b.next(0); ok {
				t.Errorf("the rank has got %+v", m)
			}
			j.nothingHeld()
			j.noFault()
		})
	}
}

// A request outside a window is refused, and changes nothing.
func TestOutsideWindow(t *testing.T) {
	j := open(t, 2, 1)
	a, b := j.join(0), j.join(1)
	memory := b.window(0, 1, 4096)
	for name, c := range map[string]struct {
		request wire.Remote
		payload []byte
		want    wire.RemoteStatus
	}{
		"window":     {wire.Remote{Kind: wire.RemotePut, Window: 1, Length: 1}, []byte{1}, wire.RemoteNoWindow},
		"put":        {wire.Remote{Kind: wire.RemotePut, Offset: 4095, Length: 2}, []byte{1, 1}, wire.RemoteOutside},
		"get":        {wire.Remote{Kind: wire.RemoteGet, Offset: 4000, Length: 100}, nil, wire.RemoteOutside},
		"far":        {wire.Remote{Kind: wire.RemotePut, Offset: 1<<64 - 1, Length: 2}, []byte{1, 1}, wire.RemoteOutside},
		"add":        {wire.Remote{Kind: wire.RemoteAdd, Offset: 4096, Length: 8}, le(1), wire.RemoteOutside},
		"unaligned":  {wire.Remote{Kind: wire.RemoteAdd, Offset: 4, Length: 8}, le(1), wire.RemoteOutside},
		"swap":       {wire.Remote{Kind: wire.RemoteSwap, Offset: 4092, Length: 16}, le(0, 1), wire.RemoteOutside},
		"end of all": {wire.Remote{Kind: wire.RemotePut, Offset: 1<<64 - 8, Length: 8}, le(1), wire.RemoteOutside},
	} {
		a.postRemote(1, c.request, c.payload)
		if r, data := a.answered(0); r.Status != c.want || len(data) != 0 {
			t.Errorf("%s: %+v, %x", name, r, data)
		}
	}
	if !bytes.Equal(memory, make([]byte, 4096)) {
		t.Error("the memory has changed")
	}
	j.noFault()
	a.post(1, wire.HandlerRemote, 9<<32, nil)
	j.fault("rank 0 has sent rank 1", "makes no sense")
}
