package border

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"

	"margay/kernel/abi/id"
	"margay/kernel/abi/wire"
)

// records is how many records can begin in a ring.
const records = wire.ChannelRing/wire.ChannelHeader + 1

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
		TargetRank: uint32(p.Target), Judged: judged, Trusted: judged,
	}
	binary.BigEndian.PutUint16(o.Port[:], p.From.Port())
	return o
}

// Admit makes the program judge the datagrams to an end from now on, whose channel has a seal, and
// reports whether it does: it does not if there is no program. The end has the messages before a
// position of the ring. If the program knows the pair with this seal, it goes on.
func (b *Border) Admit(p Pair, seal, position uint64) (bool, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.link == nil {
		return false, nil
	}
	if err := b.admit(&p, seal, position); err != nil {
		return false, fmt.Errorf("judge messages from rank %d to rank %d on the interface: %w", p.Source, p.Target, err)
	}
	b.pairs++
	return true, nil
}

func (b *Border) admit(p *Pair, seal, position uint64) error {
	peers, is := b.maps[mapPeers], new(peer)
	err := peers.Lookup(p.end(), is)
	switch {
	case err == nil && is.Key == p.Key && is.Seal == seal:
		return b.advance(p, position)
	case err == nil || errors.Is(err, ebpf.ErrKeyNotExist): // or of a job that ended without a node kernel
		return peers.Update(p.end(), p.peer(seal, position), ebpf.UpdateAny)
	}
	return err
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
	is.Judged, is.Trusted = position, position
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
