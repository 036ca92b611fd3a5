package vswitch

import "sync/atomic"

// Stats counts the traffic of a port since the switch started. Bytes exclude the length prefixes.
type Stats struct {
	Connected   bool   // a peer is there
	Connections uint64 // peers so far
	RxFrames    uint64 // frames that came from the peer, those dropped afterwards included
	RxBytes     uint64
	TxFrames    uint64 // frames written to the peer
	TxBytes     uint64
	Drops       Drops
}

// Drops counts the frames that were not delivered, by reason. The first four are counted at the
// source port, Absent, Full and Unsent at the destination port, the others at the port with the
// Fault. Each copy of a flooded frame counts.
type Drops struct {
	Runt    uint64 // shorter than an Ethernet header
	Source  uint64 // the source address is not the port's
	Claim   uint64 // the peer claims an address that is not its own, or has one and speaks neither IPv4 nor ARP for it; or it has one and answers DHCP clients, or asks DHCP for another station
	Unknown uint64 // no other port has the destination address
	Absent  uint64 // the port has no peer
	Full    uint64 // the port's queue, or its Fault's, is full
	Unsent  uint64 // the peer went while the frame was queued
	Lost    uint64 // Fault.Loss
	Cut     uint64 // Fault.Cut
}

// Total returns the sum over all reasons.
func (d Drops) Total() uint64 {
	return d.Runt + d.Source + d.Claim + d.Unknown + d.Absent + d.Full + d.Unsent + d.Lost + d.Cut
}

func (s *Stats) add(o Stats) {
	s.Connected = s.Connected || o.Connected
	s.Connections += o.Connections
	s.RxFrames += o.RxFrames
	s.RxBytes += o.RxBytes
	s.TxFrames += o.TxFrames
	s.TxBytes += o.TxBytes
	s.Drops.Runt += o.Drops.Runt
	s.Drops.Source += o.Drops.Source
	s.Drops.Claim += o.Drops.Claim
	s.Drops.Unknown += o.Drops.Unknown
	s.Drops.Absent += o.Drops.Absent
	s.Drops.Full += o.Drops.Full
	s.Drops.Unsent += o.Drops.Unsent
	s.Drops.Lost += o.Drops.Lost
	s.Drops.Cut += o.Drops.Cut
}

// counters is the live form of Stats.
type counters struct {
	connections                                                      atomic.Uint64
	rxFrames, rxBytes, txFrames, txBytes                             atomic.Uint64
	runt, source, claim, unknown, absent, full, unsent, lost, cutOff atomic.Uint64
}

func (c *counters) snapshot() Stats {
	return Stats{
		Connections: c.connections.Load(),
		RxFrames:    c.rxFrames.Load(),
		RxBytes:     c.rxBytes.Load(),
		TxFrames:    c.txFrames.Load(),
		TxBytes:     c.txBytes.Load(),
		Drops: Drops{
			Runt:    c.runt.Load(),
			Source:  c.source.Load(),
			Claim:   c.claim.Load(),
			Unknown: c.unknown.Load(),
			Absent:  c.absent.Load(),
			Full:    c.full.Load(),
			Unsent:  c.unsent.Load(),
			Lost:    c.lost.Load(),
			Cut:     c.cutOff.Load(),
		},
	}
}
