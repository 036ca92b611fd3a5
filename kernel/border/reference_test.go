//go:build guest

package border

import (
	"encoding/binary"
	"net/netip"

	"margay/kernel/abi/mirror"
	"margay/kernel/abi/slot"
	"margay/kernel/abi/wire"
)

// reference is the program in Go, with the parsers of other packages.
type reference struct {
	pairs   map[end]*judged
	ask     func(*slot.PacketContext) slot.Verdict
	stopped int // records
}

// judged is a pair, and what was answered about its messages.
type judged struct {
	Pair
	seal, position, trusted uint64
	records                 map[uint64]record // by position
	forged                  int
	total, next             uint32 // of a long message that was stopped
}

// record is a record that was judged: a message, or the head of a pad.
type record struct {
	bytes   string
	stopped bool
}

// mostForged is FORGED of skeleton.c.
const mostForged = 16

// take returns the frame as the program passes it on. A frame that makes no sense may be changed
// behind its header.
func (r *reference) take(frame []byte) (out []byte, sealed bool) {
	le, be := binary.LittleEndian, binary.BigEndian
	out = append([]byte(nil), frame...)
	if len(frame) < 14+20+8 || be.Uint16(frame[12:]) != 0x0800 {
		return out, false
	}
	ip := frame[14:]
	total := int(be.Uint16(ip[2:]))
	if ip[0] != 0x45 || ip[9] != 17 || be.Uint16(ip[6:])&0x3fff != 0 || total < 28 || total > len(ip) || int(be.Uint16(ip[24:])) != total-20 {
		return out, false
	}
	h, data, err := mirror.Parse(ip[28:total])
	if err != nil || len(ip[28:total]) > mirror.Most {
		return out, false
	}
	key := end{Number: h.Number, Port: [2]byte(ip[22:24])}
	p := r.pairs[key]
	from := netip.AddrPortFrom(netip.AddrFrom4([4]byte(ip[12:16])), be.Uint16(ip[20:]))
	if p == nil || p.Key != h.Key || p.From != from || p.forged >= mostForged {
		return out, false
	}
	if sum := be.Uint16(ip[26:]); sum != 0 && sum != checksum(ip[:total]) {
		return out, false
	}
	u := out[14+28 : 14+total]
	switch {
	case len(data) == 0:
	case h.Offset%8 != 0 || h.Offset > p.position || p.position-h.Offset > wire.ChannelRing:
		le.PutUint64(u[16:], ^uint64(7))
	case !r.walk(p, h.Offset, u[mirror.HeaderSize:]):
		return out, false
	}
	le.PutUint64(u[8:], h.Key^p.seal)
	if be.Uint16(ip[26:]) != 0 {
		be.PutUint16(out[14+26:], checksum(out[14:14+total]))
	}
	return out, true
}

// walk judges records, and reports whether they make sense.
func (r *reference) walk(p *judged, position uint64, data []byte) bool {
	le := binary.LittleEndian
	for len(data) > 0 {
		size, kind, handler := int(le.Uint32(data)), le.Uint16(data[4:]), le.Uint16(data[6:])
		room := wire.ChannelRing - int(position%wire.ChannelRing)
		length := room
		if kind != 2 {
			length = (wire.ChannelHeader + size + 7) &^ 7
			if kind != 1 || size > wire.ChannelPayload || length > room {
				return false
			}
		}
		crosses := func(to uint64) bool { return position < to && position+uint64(length) > to }
		if length > len(data) || crosses(p.position) || crosses(p.trusted) {
			return false
		}
		is := record{bytes: string(data[:length])}
		if kind == 2 {
			is.bytes = is.bytes[:8]
		}
		switch was, known := p.records[position]; {
		case position == p.position:
			is.stopped = kind == 1 && r.stops(p, handler, data[:length], size)
			p.position += uint64(length)
			if p.records[position] = is; is.stopped {
				r.stopped++
			}
		case position < p.trusted:
		case !known || was.bytes != is.bytes:
			p.forged++
			return false
		default:
			is = was
		}
		if is.stopped {
			le.PutUint16(data[6:], wire.HandlerStopped)
		}
		data, position = data[length:], position+uint64(length)
	}
	return true
}

func (r *reference) stops(p *judged, handler uint16, record []byte, size int) bool {
	le := binary.LittleEndian
	args := [2]uint64{le.Uint64(record[8:]), le.Uint64(record[16:])}
	payload := record[wire.ChannelHeader:][:size]
	if handler != wire.HandlerPiece {
		return r.verdict(p, handler, args, payload, size)
	}
	total, offset := uint32(args[0]), uint32(args[0]>>32)
	stops := false
	if offset > 0 {
		stops = p.total > 0 && p.total == total && p.next == offset
	} else {
		args[1] = args[1]&^0xffff_ffff | uint64(p.Target) // the program does not look at the target
		piece, err := wire.ParsePiece([2]uint64{args[0], args[1]}, payload, 1<<32)
		if err != nil && (piece.Handler >= wire.MaxHandlers || total <= wire.MaxPayload || total > wire.MaxMessage || size <= wire.PieceArgs) {
			return false
		}
		stops = r.verdict(p, piece.Handler, piece.Args, piece.Data[:min(len(piece.Data), wire.MaxPayload-wire.PieceArgs)], int(total))
		size -= wire.PieceArgs
	}
	p.total, p.next = 0, offset+uint32(size)
	if stops && p.next < total {
		p.total = total
	}
	return stops
}

func (r *reference) verdict(p *judged, handler uint16, args [2]uint64, payload []byte, total int) bool {
	c := &slot.PacketContext{Message: slot.MessageContext{
		Job: uint32(p.Job), SourceNode: uint32(p.Node), SourceRank: uint32(p.Source), TargetRank: uint32(p.Target), Handler: uint32(handler), Args: args,
		Length: uint32(min(len(payload), wire.MaxPayload)), Total: uint64(total),
	}, FromNode: uint32(p.Node)}
	copy(c.Message.Data[:], payload)
	return r.ask(c) != slot.Pass
}

// checksum returns the checksum of a datagram, an IP packet without options whose checksum of UDP
// is replaced.
func checksum(ip []byte) uint16 {
	be := binary.BigEndian
	sum := uint32(17) + uint32(len(ip)-20)
	add := func(b []byte) {
		for i := 0; i+1 < len(b); i += 2 {
			sum += uint32(be.Uint16(b[i:]))
		}
		if len(b)%2 == 1 {
			sum += uint32(b[len(b)-1]) << 8
		}
	}
	add(ip[12:20])
	add(ip[20:26])
	add(ip[28:])
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	if sum == 0xffff {
		return 0xffff
	}
	return ^uint16(sum)
}
