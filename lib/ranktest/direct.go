package ranktest

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"margay/kernel/abi/onesided"
	"margay/kernel/abi/wire"
)

// directs is what the node kernels of a job need for requests by datagrams that the ranks do not
// carry out. They lose some of these and of their answers, and are started again at times.
type directs struct {
	j        *job
	channels map[int][]directEnd // by rank
	served   atomic.Int64        // requests that came
}

// directEnd is a rank's end of mirrored channels, as it fetches it.
type directEnd struct {
	wire.Mirror
	files []*os.File
	out   *wire.Channel
}

// directServer plays the node kernel of a rank that is asked.
type directServer struct {
	socket *os.File
	from   netip.AddrPort
	rank   int
	peers  map[onesided.Pair]directPeer
	random *rand.Rand
}

// directPeer is a rank that asks.
type directPeer struct {
	key, replyKey uint64
	address       netip.AddrPort
	journal       []byte
}

// newDirects gives the ranks of different nodes mirrored channels and ways to each other's windows.
// Their node kernels serve until the test is over.
func newDirects(j *job, random *rand.Rand) *directs {
	j.t.Helper()
	d := &directs{j: j, channels: make(map[int][]directEnd)}
	var sockets []*os.File
	var addresses []netip.AddrPort
	servers := make([]*directServer, len(j.ranks))
	for rank := range j.ranks {
		f, address := datagrams(j.t)
		sockets, addresses = append(sockets, f), append(addresses, address)
		s := &directServer{rank: rank, peers: make(map[onesided.Pair]directPeer), random: rand.New(rand.NewPCG(random.Uint64(), 1))}
		s.socket, s.from = datagrams(j.t)
		servers[rank] = s
	}
	keys := make(map[[2]int]uint64)
	for a := range j.ranks {
		for b := range j.ranks {
			keys[[2]int{a, b}] = random.Uint64()
		}
	}
	for a := range j.ranks {
		for b := range j.ranks {
			if a/2 == b/2 {
				continue
			}
			own, peer := keys[[2]int{a, b}], keys[[2]int{b, a}]
			memory, mem := mapped(j.t, "channel", wire.MirrorSize)
			out, in, err := wire.OpenMirror(mem)
			if err != nil {
				j.t.Fatal(err)
			}
			host := addresses[b].Addr().As4()
			d.channels[a] = append(d.channels[a], directEnd{out: out, files: []*os.File{memory, sockets[a]}, Mirror: wire.Mirror{
				Rank: uint32(b), Number: uint32(b), Key: own, PeerNumber: uint32(a), PeerKey: peer, Largest: largest,
				Address: binary.BigEndian.Uint32(host[:]), Port: addresses[b].Port(), Windows: servers[b].from.Port(),
			}})
			pair := onesided.Pair{Source: uint32(b), Target: uint32(a)}
			servers[a].peers[pair] = directPeer{key: own, replyKey: peer, address: addresses[b], journal: in.Journal()[:onesided.JournalSize]}
		}
	}
	var running sync.WaitGroup
	var over atomic.Bool
	for _, s := range servers {
		running.Go(func() { d.serve(s, &over) })
	}
	j.t.Cleanup(func() { over.Store(true); running.Wait() })
	return d
}

// show makes the ranks fetch their channels.
func (d *directs) show() {
	for rank, k := range d.j.ranks {
		k.area.Channels().Store(uint32(len(d.channels[rank])))
		k.area.Path().Store(wire.PathYield | wire.PathDirect | wire.PathFar)
	}
}

// fetch answers a request of a rank for a channel.
func (d *directs) fetch(rank int, index uint64) (wire.Reply, []*os.File) {
	if index >= uint64(len(d.channels[rank])) {
		return wire.Reply{Status: wire.StatusNotFound}, nil
	}
	e := d.channels[rank][index]
	return wire.Reply{Values: e.Values()}, e.files
}

// pause has the ranks of a node pause, or not, the datagrams to a random rank.
func (d *directs) pause(random *rand.Rand) {
	rank := random.IntN(len(d.channels))
	for _, e := range d.channels[rank] {
		e.out.Closed().Store([]uint32{0, 0, wire.ChannelPaused}[random.IntN(3)])
	}
}

// serve carries out requests about the windows of a rank.
func (d *directs) serve(s *directServer, over *atomic.Bool) {
	b := make([]byte, onesided.Most+1)
	for !over.Load() {
		if _, err := unix.Poll([]unix.PollFd{{Fd: int32(s.socket.Fd()), Events: unix.POLLIN}}, 10); err != nil && err != unix.EINTR {
			d.j.t.Error(err)
			return
		}
		for {
			n, name, err := unix.Recvfrom(int(s.socket.Fd()), b, unix.MSG_DONTWAIT)
			if err != nil {
				break
			}
			if from, ok := name.(*unix.SockaddrInet4); ok && s.random.IntN(20) > 0 {
				d.take(s, b[:n], from)
			}
		}
	}
}

// take carries out a request.
func (d *directs) take(s *directServer, b []byte, from *unix.SockaddrInet4) {
	q, data, err := onesided.ParseRequest(b)
	p, ok := s.peers[q.Pair]
	if err != nil || !ok || q.Key != p.key || from.Port != int(p.address.Port()) || len(b) > largest {
		d.j.t.Errorf("rank %d is asked %+v by %v: %v", s.rank, q, from, err)
		return
	}
	journal, err := onesided.OpenJournal(p.journal, onesided.ByKernel) // as a node kernel that was started again
	if err != nil {
		d.j.t.Error(err)
		return
	}
	answer, changed := journal.Carry(nil, &q, data, p.replyKey, func(window uint8) []byte {
		d.j.regions.mu.Lock()
		defer d.j.regions.mu.Unlock()
		return d.j.regions.memory[fmt.Sprint(s.rank/2, " ", wire.WindowName(int(window), s.rank))]
	})
	if changed {
		d.j.ranks[s.rank].ring()
	}
	if d.served.Add(1); len(answer) > 0 && s.random.IntN(20) > 0 {
		_ = unix.Sendto(int(s.socket.Fd()), answer, unix.MSG_DONTWAIT, from)
	}
}

// stranger sends a rank answers that are not its node kernels', and late ones.
func (d *directs) stranger(random *rand.Rand) {
	rank := random.IntN(len(d.channels))
	e := d.channels[rank][0]
	b := (&onesided.Answer{Pair: onesided.Pair{Source: uint32(rank), Target: e.Rank}, Key: e.Key, Done: 5, Outside: ^uint64(0)}).Append(nil, nil)
	name, err := unix.Getsockname(int(e.files[1].Fd()))
	if err != nil {
		d.j.t.Fatal(err)
	}
	_ = unix.Sendto(int(e.files[1].Fd()), b, unix.MSG_DONTWAIT, name)
}

// byDatagrams: ranks use windows of other nodes by datagrams, which are lost at times, and by
// messages, in turns.
func byDatagrams(j *job, seed uint64) {
	j.t.Helper()
	random := rand.New(rand.NewPCG(seed, 7))
	d := newDirects(j, random)
	j.direct.Store(d)
	d.show()
	last := time.Now()
	j.step = func() {
		if time.Since(last) < time.Millisecond {
			return
		}
		last = time.Now()
		d.stranger(random)
		if random.IntN(10) == 0 {
			d.pause(random)
		}
	}
}

// served: a rank that is asked about its window without end leaves a wait at its time-out, and
// answers. Requests that are forged have no effect.
func served(t *testing.T, seed uint64, program Program) {
	f := startFar(t, seed, program, "served", "300")
	f.pass(wire.Record{Handler: 6})
	q, _ := f.expect(wire.OpRegion)
	f.answer(q, wire.Reply{Values: [8]uint64{4096}}, shared(t, "window"))
	pair := onesided.Pair{Source: 0, Target: 1}
	get := onesided.Request{Pair: pair, Kind: wire.RemoteGet, Length: 8, Key: f.theirKey, Number: 1}
	put := onesided.Request{Pair: pair, Kind: wire.RemotePut, Length: 1, Key: f.theirKey, Number: 2}
	honest, forged := get.Append(nil), append(put.Append(nil), 'x')
	put.Key++
	other := append(put.Append(nil), 'x')
	stranger, _ := datagrams(t)
	var over atomic.Bool
	var sending sync.WaitGroup
	sending.Go(func() {
		for !over.Load() {
			for range 20 {
				f.write(f.mine, honest, f.theirAddress)
			}
			f.write(stranger, forged, f.theirAddress)
			f.write(f.mine, other, f.theirAddress)
			f.write(f.mine, forged[:len(forged)-1], f.theirAddress)
		}
	})
	out, _ := f.Ended(0)
	over.Store(true)
	sending.Wait()
	if out != "0 0" {
		t.Errorf("it says %q", out)
	}
	answers, b := 0, make([]byte, onesided.Most+1)
	for {
		n, _, err := unix.Recvfrom(int(f.mine.Fd()), b, unix.MSG_DONTWAIT)
		if err != nil {
			break
		}
		if a, _, err := onesided.ParseAnswer(b[:n]); err == nil && a.Done == 1 && a.Number == 1 {
			answers++
		}
	}
	if answers == 0 {
		t.Error("it has answered nothing")
	}
}
