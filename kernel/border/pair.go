package border

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"

	"margay/kernel/abi/id"
	"margay/kernel/abi/wire"
)

// places are the places of a ring at which a record may be.
const places = wire.ChannelRing / 8

// Pair is an end of mirrored channels on this node, and the other one.
type Pair struct {
	Number uint32 // of the end
	Key    uint64
	Port   uint16
	From   netip.AddrPort // of the other end's socket, IPv4

	Job            id.Job
	Node           id.Node // of the other end
	Source, Target id.Rank // the other end's, and the rank here
}

// end returns the key of the pair in the table.
func (p *Pair) end() end {
	e := end{Number: p.Number}
	binary.BigEndian.PutUint16(e.Port[:], p.Port)
	return e
}

// peer returns the entry of the pair, whose messages before a position of the ring are not judged.
func (p *Pair) peer(seal, judged uint64) *peer {
	o := &peer{
		Key: p.Key, Seal: seal, Address: p.From.Addr().As4(), Job: uint32(p.Job), SourceNode: uint32(p.Node), SourceRank: uint32(p.Source),
		TargetRank: uint32(p.Target), Judged: judged,
	}
	binary.BigEndian.PutUint16(o.Port[:], p.From.Port())
	return o
}

// Admit makes the program judge the datagrams to an end from now on, and returns the seal of the
// pair. The end has the messages before a position of the ring. seal is not 0 if the pair has one:
// if the program knows it, it goes on. There must be a program, with extensions or without.
func (b *Border) Admit(p Pair, seal, position uint64) (uint64, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	seal, err := b.admit(&p, seal, position)
	if err != nil {
		return 0, fmt.Errorf("judge messages from rank %d to rank %d on the interface: %w", p.Source, p.Target, err)
	}
	b.pairs++
	return seal, nil
}

func (b *Border) admit(p *Pair, seal, position uint64) (uint64, error) {
	if b.link == nil {
		return 0, errors.New("there is no program")
	}
	peers := b.maps[mapPeers]
	if seal != 0 {
		err := peers.Update(p.end(), p.peer(seal, position), ebpf.UpdateNoExist)
		if errors.Is(err, ebpf.ErrKeyExist) {
			err = b.advance(p, position)
		}
		return seal, err
	}
	for seal == 0 {
		var random [8]byte
		rand.Read(random[:]) // it never fails
		seal = binary.LittleEndian.Uint64(random[:])
	}
	return seal, peers.Update(p.end(), p.peer(seal, position), ebpf.UpdateAny)
}

// Advance notes that the end of an admitted pair has the messages before a position of the ring:
// one datagram may have come to it while it was admitted, and was not judged.
func (b *Border) Advance(p Pair, position uint64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.advance(&p, position); err != nil {
		return fmt.Errorf("judge messages from rank %d to rank %d on the interface: %w", p.Source, p.Target, err)
	}
	return nil
}

func (b *Border) advance(p *Pair, position uint64) error {
	b.Lock() // the program must not write into the entry that is replaced
	defer b.Unlock()
	peers, is := b.maps[mapPeers], new(peer)
	if err := peers.Lookup(p.end(), is); err != nil || position <= is.Judged {
		return err
	}
	is.Judged = position
	return peers.Update(p.end(), is, ebpf.UpdateExist)
}

// Leave ends Admit, when no rank takes datagrams at the end any more.
func (b *Border) Leave(p Pair) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.pairs--; b.pairs == 0 {
		b.poke()
	}
	if err := b.maps[mapPeers].Delete(p.end()); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		b.config.Log("extensions on the interface: %v", err)
	}
}
