package collective

import "margay/kernel/abi/wire"

// Carrier carries the chunks of one call. Both methods wait.
type Carrier interface {
	// Send sends a chunk of 1 to wire.MaxPayload bytes.
	Send(to int, chunk []byte) error
	// Receive fills buf with data from a rank.
	Receive(from int, buf []byte) error
}

// Place is a rank's place in a call.
type Place struct {
	Rank, Size int
	Root       int
}

// own returns the place of this rank, counted from the root.
func (p Place) own() int { return (p.Rank - p.Root + p.Size) % p.Size }

// rank returns the rank at a place.
func (p Place) rank(place int) int { return (place + p.Root) % p.Size }

// parent returns the rank of the parent, and false for the root.
func (p Place) parent() (int, bool) {
	own := p.own()
	return p.rank(own & (own - 1)), own != 0
}

// child is a child of this rank, and the number of places in its subtree.
type child struct{ place, subtree int }

// children returns the children in the order of places.
func (p Place) children() []child {
	var children []child
	own := p.own()
	for bit := 1; own+bit < p.Size && own&bit == 0; bit *= 2 {
		children = append(children, child{own + bit, min(bit, p.Size-own-bit)})
	}
	return children
}

// send sends data of any length.
func send(c Carrier, to int, data []byte) error {
	for len(data) > 0 {
		n := min(len(data), wire.MaxPayload)
		if err := c.Send(to, data[:n]); err != nil {
			return err
		}
		data = data[n:]
	}
	return nil
}

// Broadcast copies data of the root to data of all other ranks.
func Broadcast(c Carrier, p Place, data []byte) error {
	parent, has := p.parent()
	children := p.children()
	for len(data) > 0 {
		piece := data[:min(len(data), wire.MaxPayload)]
		if has {
			if err := c.Receive(parent, piece); err != nil {
				return err
			}
		}
		for i := len(children) - 1; i >= 0; i-- { // the largest subtree first
			if err := c.Send(p.rank(children[i].place), piece); err != nil {
				return err
			}
		}
		data = data[len(piece):]
	}
	return nil
}

// Piece returns how many bytes of elements of a size are combined at a time.
func Piece(size int) int { return max(size, wire.MaxPayload/size*size) }

// Reduce combines the elements of all ranks' in, which have size bytes each, to out of the root, in
// the order of places. out may be in; only the root uses it. buf has 2*Piece(size) bytes.
func Reduce(c Carrier, p Place, in, out []byte, size int, buf []byte, combine func(into, from []byte)) error {
	parent, has := p.parent()
	children := p.children()
	for at := 0; at < len(in); at += Piece(size) {
		n := min(len(in)-at, Piece(size))
		sum, other := buf[:n], buf[Piece(size):][:n]
		copy(sum, in[at:])
		for _, child := range children {
			if err := c.Receive(p.rank(child.place), other); err != nil {
				return err
			}
			combine(sum, other)
		}
		if !has {
			copy(out[at:], sum)
		} else if err := send(c, parent, sum); err != nil {
			return err
		}
	}
	return nil
}

// IsSmall reports whether the ranks of a job make an all-reduce of that length by AllReduce: its
// messages are more, but each of them waits for the others once, and not for a tree, twice.
func IsSmall(size, nodes, length int) bool {
	return nodes == 1 && size <= wire.MostExchanging && length <= wire.MaxPayload
}

// AllReduce is Reduce with root 0, and Broadcast of its result, with messages from each rank to
// each other one. It combines in the same order and association. buf has room for the elements of
// all ranks.
func AllReduce(c Carrier, p Place, in, out, buf []byte, combine func(into, from []byte)) error {
	if len(in) == 0 {
		return nil
	}
	block := func(rank int) []byte { return buf[rank*len(in):][:len(in)] }
	copy(block(p.Rank), in)
	for i := 1; i < p.Size; i++ {
		if err := c.Send((p.Rank+i)%p.Size, in); err != nil {
			return err
		}
	}
	for i := 1; i < p.Size; i++ {
		from := (p.Rank + i) % p.Size
		if err := c.Receive(from, block(from)); err != nil {
			return err
		}
	}
	for bit := 1; bit < p.Size; bit *= 2 {
		for at := 0; at+bit < p.Size; at += 2 * bit {
			combine(block(at), block(at+bit))
		}
	}
	copy(out, block(0))
	return nil
}

// Gather collects the in of all ranks, which have the same length, in out of the root, in the order
// of ranks. Only the root uses out. A rank in between passes data on in full chunks.
func Gather(c Carrier, p Place, in, out []byte) error {
	parent, has := p.parent()
	if !has {
		return collect(c, p, in, out)
	}
	packer := packer{carrier: c, to: parent}
	if err := packer.add(in); err != nil {
		return err
	}
	buf := make([]byte, wire.MaxPayload)
	for _, child := range p.children() {
		for left := child.subtree * len(in); left > 0; {
			piece := buf[:min(left, len(buf))]
			if err := c.Receive(p.rank(child.place), piece); err != nil {
				return err
			}
			if err := packer.add(piece); err != nil {
				return err
			}
			left -= len(piece)
		}
	}
	return packer.flush()
}

// collect is Gather at the root.
func collect(c Carrier, p Place, in, out []byte) error {
	block := func(place int) []byte { return out[p.rank(place)*len(in):][:len(in)] }
	copy(block(0), in)
	for _, child := range p.children() {
		for i := range child.subtree {
			if err := c.Receive(p.rank(child.place), block(child.place+i)); err != nil {
				return err
			}
		}
	}
	return nil
}

// packer sends data in full chunks.
type packer struct {
	carrier Carrier
	to      int
	chunk   []byte
}

func (p *packer) add(data []byte) error {
	for len(data) > 0 {
		n := min(len(data), wire.MaxPayload-len(p.chunk))
		p.chunk = append(p.chunk, data[:n]...)
		data = data[n:]
		if len(p.chunk) == wire.MaxPayload {
			if err := p.flush(); err != nil {
				return err
			}
		}
	}
	return nil
}

func (p *packer) flush() error {
	if len(p.chunk) == 0 {
		return nil
	}
	err := p.carrier.Send(p.to, p.chunk)
	p.chunk = p.chunk[:0]
	return err
}
