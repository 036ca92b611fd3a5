package channel

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"

	"margay/internal/train"
	"margay/kernel/abi/id"
	"margay/kernel/abi/mirror"
	"margay/kernel/abi/wire"
	"margay/kernel/keep"
	"margay/nimble/memory"
)

// MirrorLimit is the largest number of pairs of mirrored channels of a job on a node, so that they
// take no more than 16 MiB. A rank's other pairs with ranks of other nodes send through the node
// kernels.
const MirrorLimit = 120

// MirrorReserve is the number of these that are reserved for leaders that meet in barriers (wire,
// "The board"), so that other pairs cannot take all of them. The reserve covers all barriers of a
// job on up to 256 nodes.
const MirrorReserve = 20

// keptMirror is the name under which a job's init keeps a pair of mirrored channels, followed by
// the local rank and the other rank.
const keptMirror = "mirror/pair/"

// Remote is what mirrored channels need. Addresses are IPv4.
type Remote struct {
	Self    netip.Addr               // of this node
	Ranks   int                      // of the job
	Address func(id.Rank) netip.Addr // of a rank's node
	Largest int                      // bytes of the largest datagram, at least mirror.Least
}

// Meeting describes a rank's end of mirrored channels to another node.
type Meeting struct {
	Number  uint32
	Key     uint64
	Port    uint16
	Windows uint16 // UDP port of that node kernel for package onesided; 0: it has none
}

// far is a pair of mirrored channels between a local rank and a rank of another node.
type far struct {
	farWords
	memory  *memory.Memory
	out, in *wire.Channel

	position uint64 // in the rank's send ring, behind its last message to the other that passed the node kernels
	number   uint64 // of that message among those to its node; 0: it is settled

	sealed   bool   // Config.Seals has admitted it
	sealedAt uint64 // the position that had arrived then, if advances is set
	advances bool   // no further bytes have arrived since

	care
}

// farWords are the words kept of a far.
type farWords struct {
	Local int
	Rank  id.Rank // the other one
	Own   Meeting
	Peer  Meeting
	Place int // in the order of the rank's channels; -1: the other end is not known yet
}

// farOf returns the mirrored channels of a local rank with another rank; nil if there are none. The
// caller holds the lock.
func (t *Table) farOf(local int, rank id.Rank) *far {
	for _, f := range t.fars {
		if f.Local == local && f.Rank == rank {
			return f
		}
	}
	return nil
}

// Meet makes mirrored channels between a local rank and a rank of another node unless they exist.
// It returns this end of them, and whether the other end is known. ok is false if there are none.
func (t *Table) Meet(local int, rank id.Rank) (own Meeting, complete, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f := t.farOf(local, rank)
	if f == nil {
		var err error
		if f, err = t.makeFar(local, rank); err != nil {
			t.config.Log("ranks %d and %d speak through the node kernels: %v", t.config.Ranks[local].Number, rank, err)
		}
		if f == nil {
			return own, false, false
		}
	}
	return f.Own, f.Place >= 0, true
}

// Met notes the other end of mirrored channels that Meet has returned. From then on, the local rank
// may fetch them.
func (t *Table) Met(local int, rank id.Rank, peer Meeting) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	f := t.farOf(local, rank)
	if f == nil || f.Place >= 0 {
		return nil
	}
	f.Peer, f.Place = peer, t.made
	err := t.seal(f)
	if err == nil {
		err = t.keepFar(f)
	}
	if err != nil {
		f.Place = -1
		return err
	}
	t.show(f)
	t.announce(local)
	return nil
}

// makeFar makes mirrored channels. It makes none if there are too many or the local rank has ended.
// The caller holds the lock.
func (t *Table) makeFar(local int, rank id.Rank) (*far, error) {
	if t.full(local, rank) || t.ended[local] {
		return nil, nil
	}
	s, err := t.socket(local)
	if err != nil {
		return nil, err
	}
	f := &far{farWords: farWords{Local: local, Rank: rank, Place: -1}}
	f.Own = Meeting{Number: s.ends, Port: s.port}
	f.Own.Key = secret()
	if f.memory, err = memory.Create("channel", wire.MirrorSize); err != nil {
		return nil, err
	}
	if f.out, f.in, err = wire.OpenMirror(f.memory.Bytes()); err == nil {
		f.out.Closed().Store(wire.ChannelPaused)
		err = t.keepFar(f)
	}
	if err != nil {
		f.memory.Close()
		return nil, err
	}
	s.ends++
	t.fars = append(t.fars, f)
	if s.ends > 1 {
		t.share(local, s)
	}
	return f, nil
}

// secret returns a random number that is not 0.
func secret() uint64 {
	for {
		var b [8]byte
		rand.Read(b[:]) // it never fails
		if n := binary.LittleEndian.Uint64(b[:]); n != 0 {
			return n
		}
	}
}

// share keeps a local rank from connecting its socket to the rank at the other end of its first
// mirrored channels, now that it has others: the socket would not receive their datagrams. The rank
// looks at the word after it has connected the socket. The caller holds the lock.
func (t *Table) share(local int, s *socket) {
	for _, f := range t.fars {
		if f.Local == local {
			f.out.Shared().Store(1)
		}
	}
	if err := train.Disconnect(int(s.file.Fd())); err != nil {
		t.config.Log("rank %d: %v", t.config.Ranks[local].Number, err)
	}
}

// full reports whether there are too many mirrored channels for another pair. The caller holds the
// lock.
func (t *Table) full(local int, rank id.Rank) bool {
	if t.meets(local, rank) {
		return len(t.fars) >= MirrorLimit
	}
	others := 0
	for _, f := range t.fars {
		if !t.meets(f.Local, f.Rank) {
			others++
		}
	}
	return len(t.fars) >= MirrorLimit || others >= MirrorLimit-MirrorReserve
}

// meets reports whether a local rank and one of another node meet in barriers.
func (t *Table) meets(local int, rank id.Rank) bool {
	if t.config.Leaders == nil {
		return false
	}
	leaders := t.config.Leaders()
	own, ok := slices.BinarySearch(leaders, t.config.Ranks[local].Number)
	other, also := slices.BinarySearch(leaders, rank)
	return ok && also && (wire.Exchange(own, other, len(leaders)) || wire.Climb(own, other))
}

func farItem(local int, rank id.Rank) string { return fmt.Sprint(keptMirror, local, "/", rank) }

// keepFar leaves a far with the keeper.
func (t *Table) keepFar(f *far) error {
	words, err := json.Marshal(f.farWords)
	if err != nil {
		return err
	}
	return t.keepMemory(farItem(f.Local, f.Rank), words, f.memory)
}

// show makes a far with both ends known the next channel of its rank. The caller holds the lock.
func (t *Table) show(f *far) {
	t.ends[f.Local] = append(t.ends[f.Local], end{far: f})
	t.made++
}

// adoptFars takes over the mirrored channels that were kept, and returns those with a place, by
// place.
func (t *Table) adoptFars(items map[string]*keep.Item) (map[int]*far, error) {
	placed := make(map[int]*far)
	if t.config.Remote == nil {
		return placed, nil
	}
	for local := range t.config.Ranks {
		if err := t.adoptSocket(local, items[socketItem(local)]); err != nil {
			return nil, err
		}
		for rank := range t.config.Remote.Ranks {
			item := items[farItem(local, id.Rank(rank))]
			if item == nil {
				continue
			}
			f, err := adoptFar(item)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", item.Name, err)
			}
			t.fars = append(t.fars, f)
			if s := t.sockets[local]; s == nil || f.Local != local || f.Rank != id.Rank(rank) {
				return nil, fmt.Errorf("%s: it is of local rank %d and rank %d", item.Name, f.Local, f.Rank)
			}
			t.sockets[local].ends++
			if f.Place >= 0 {
				placed[f.Place] = f
			}
			if err := t.seal(f); err != nil {
				t.config.Log("%v", err)
			}
		}
	}
	return placed, nil
}

func adoptFar(item *keep.Item) (f *far, err error) {
	f = new(far)
	if err := json.Unmarshal(item.Words, &f.farWords); err != nil {
		return nil, err
	}
	if f.memory, err = item.Memory(0, wire.MirrorSize); err != nil {
		return nil, err
	}
	if f.out, f.in, err = wire.OpenMirror(f.memory.Bytes()); err != nil {
		f.memory.Close()
	}
	return f, err
}

// fetch returns the rank's end.
func (f *far) fetch(t *Table) (got Fetched, err error) {
	remote := t.config.Remote
	address := remote.Address(f.Rank).As4()
	got.Mirror = &wire.Mirror{
		Rank: uint32(f.Rank), Number: f.Own.Number, Key: f.Own.Key, PeerNumber: f.Peer.Number, PeerKey: f.Peer.Key,
		Address: binary.BigEndian.Uint32(address[:]), Port: f.Peer.Port, Largest: uint16(remote.Largest), Windows: f.Peer.Windows,
	}
	if got.Memory, err = keep.File(f.memory); err != nil {
		return got, err
	}
	if got.Bell, err = keep.Duplicate(t.sockets[f.Local].file.Fd(), "socket"); err != nil {
		got.Memory.Close()
	}
	return got, err
}

// peer returns the other end as datagrams to it name it.
func (f *far) peer(t *Table) mirror.Peer {
	return mirror.Peer{Number: f.Peer.Number, Key: f.Peer.Key, Largest: t.config.Remote.Largest}
}

// to returns the address of the other end.
func (f *far) to(t *Table) netip.AddrPort {
	return netip.AddrPortFrom(t.config.Remote.Address(f.Rank), f.Peer.Port)
}

// Pause notes whether the ranks that is selects accept messages through mirrored channels: they do
// not while paused is set.
func (t *Table) Pause(is func(id.Rank) bool, paused bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	word := uint32(0)
	if paused {
		word = wire.ChannelPaused
	}
	for _, f := range t.fars {
		if is(f.Rank) && f.out.Closed().Load() != wire.ChannelEnded {
			f.out.Closed().Store(word)
		}
	}
}

// FarEnded notes that a rank of another node has ended.
func (t *Table) FarEnded(rank id.Rank) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, f := range t.fars {
		if f.Rank == rank {
			f.out.Closed().Store(wire.ChannelEnded)
		}
	}
}

// Far returns the pairs of a local rank, as an index, and a rank of another node that have mirrored
// channels. With incomplete, it returns only the pairs whose other end is not known.
func (t *Table) Far(incomplete bool) (pairs []Pair) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, f := range t.fars {
		if !incomplete || f.Place < 0 && !t.ended[f.Local] && f.out.Closed().Load() != wire.ChannelEnded {
			pairs = append(pairs, Pair{f.Local, f.Rank})
		}
	}
	return pairs
}

// Seal has all mirrored channels judged on the interface, those that are made from now on, too, or
// with on false no further ones. After an error some are.
func (t *Table) Seal(on bool) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sealing = on
	if !on {
		return nil
	}
	for _, f := range t.fars {
		if err := t.seal(f); err != nil {
			return err
		}
	}
	return nil
}

// seal has a far with both ends known judged if it must be. A seal stays: what was stopped must not
// arrive when it is sent again. The caller holds the lock.
func (t *Table) seal(f *far) error {
	seal := f.in.Seal().Load()
	if t.config.Seals == nil || f.Place < 0 || f.sealed || !t.sealing && seal == 0 {
		return nil
	}
	fresh := seal == 0
	if fresh {
		seal = secret()
		f.in.Seal().Store(seal) // first: if this node kernel is killed, the next one admits it
	}
	arrived := f.in.Arrived().Load() &^ 7
	var err error
	f.sealed, err = t.config.Seals.Admit(f.peering(t), seal, arrived)
	switch {
	case f.sealed:
		f.advances, f.sealedAt = true, arrived
	case fresh || err == nil:
		f.in.Seal().Store(0) // nothing changes the keys
	} // else the program that the earlier node kernel has left may change them: Tend tries again
	return err
}

// advance reports to Config.Seals what a rank has received that was not judged after it could see
// the seal: at most one datagram, whose key it had compared before. The first change of its
// position is that datagram or a judged one. The caller holds the lock.
func (f *far) advance(t *Table) {
	arrived := f.in.Arrived().Load() &^ 7
	if !f.advances || arrived == f.sealedAt {
		return
	}
	err := t.config.Seals.Advance(f.peering(t), arrived)
	if err != nil {
		t.config.Log("%v", err)
	}
	f.advances = err != nil // then again: until it is done, no data arrive
}

// Peering is mirrored channels with both ends known.
type Peering struct {
	Pair
	Own, Peer Meeting
	Address   netip.AddrPort // of the other rank's socket
	Journal   []byte         // for that rank's requests, until Close
}

// Peerings returns all mirrored channels with both ends known.
func (t *Table) Peerings() (all []Peering) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, f := range t.fars {
		if f.Place >= 0 {
			all = append(all, f.peering(t))
		}
	}
	return all
}

func (f *far) peering(t *Table) Peering {
	return Peering{Pair{f.Local, f.Rank}, f.Own, f.Peer, f.to(t), f.in.Journal()}
}

// Pair names a local rank, by its index, and a rank of another node.
type Pair struct {
	Local int
	Rank  id.Rank
}

// SpokeFar notes a local rank's last message to another rank through the node kernels: it ends at a
// position of the rank's send ring, and is one of the first number messages to the other rank's
// node. SpokeFar reports whether it matters if the message is settled: mirrored channels could then
// be used.
func (t *Table) SpokeFar(local int, rank id.Rank, position, number uint64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	f := t.farOf(local, rank)
	if f == nil {
		return false
	}
	f.position, f.number = position, number
	return f.out.Closed().Load() == 0
}

// SettledFar notes that the first number messages to the node of some ranks are settled. It reports
// whether mirrored channels to some of these ranks could be used once later ones are settled, too.
func (t *Table) SettledFar(is func(id.Rank) bool, number uint64) (unsettled bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, f := range t.fars {
		switch {
		case !is(f.Rank) || f.number == 0:
		case f.number <= number:
			f.out.Settled().Store(f.position)
			f.number = 0
		default:
			unsettled = unsettled || f.out.Closed().Load() == 0
		}
	}
	return unsettled
}

// UnsettledFar returns the ranks of other nodes that could use mirrored channels once all messages
// to them that passed the node kernels are settled, which may not be so yet.
func (t *Table) UnsettledFar() (ranks []id.Rank) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, f := range t.fars {
		if f.number != 0 && f.out.Closed().Load() == 0 {
			ranks = append(ranks, f.Rank)
		}
	}
	return ranks
}

// Resume makes all messages that passed the node kernels unsettled again: a restarted node kernel
// does not know them. sent returns how many messages were sent to the node of a rank.
func (t *Table) Resume(sent func(id.Rank) uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, f := range t.fars {
		f.position, f.number = t.config.Ranks[f.Local].Passed, sent(f.Rank)
	}
}
