// Package channel is the node kernel's part in messages between ranks that bypass it. It makes the
// channels (package wire) and leaves them with the keeper. It publishes whether the ranks may use
// them, and which messages that passed the node kernel are settled. It closes the channels to a
// rank that has ended, and it counts messages.
//
// The ranks can write anything into channels and board. The node kernel reads only counters and
// barrier words from there; no value of these harms another job.
//
// Locks: Table.mu and Settling.mu are taken last. Under Table.mu, Config.Seals takes its own locks,
// and no other one is taken under them.
package channel

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"margay/kernel/abi/id"
	"margay/kernel/abi/wire"
	"margay/kernel/keep"
	"margay/nimble/memory"
)

// Limit is the largest number of channels of a job on a node, so that they take no more than 16
// MiB. Other pairs of ranks send through the node kernel.
const Limit = 240

// The names under which a job's init keeps a table's memory and files.
const (
	keptBoard     = "channel/board"
	keptDoorbells = "channel/doorbell/" // and the local rank
	keptPairs     = "channel/pair/"     // and the channel's place in the order of creation
)

// Rank is a rank of the job on this node.
type Rank struct {
	Number id.Rank
	Area   *wire.Area
	Passed uint64 // position of its send ring before which all messages are settled
}

// Config is what a table needs.
type Config struct {
	Ranks   []Rank           // by local rank
	Remote  *Remote          // nil: there are no mirrored channels
	Leaders func() []id.Rank // returns the lowest rank of each node of the job, in ascending order; nil: none meet
	Keeper  keep.Keeper
	Seals   Seals // nil: no mirrored channels are judged on the interface
	Log     func(format string, args ...any)
}

// Seals has mirrored channels judged on the interface of the node. Its methods are called with the
// lock of the table.
type Seals interface {
	// Admit begins to judge the datagrams for this end, and reports whether it does: it does not
	// where there is no program. The channel from the other end has the seal (wire.Channel.Seal),
	// and the data before a position.
	Admit(p Peering, seal, position uint64) (bool, error)
	// Advance notes that the end has the data before a position, though they were not judged.
	Advance(p Peering, position uint64) error
	// Leave ends Admit.
	Leave(p Peering)
}

// Table has the channels of a job on this node. It is safe for concurrent use, except for Speak.
// Local ranks are indices into Config.Ranks.
type Table struct {
	config    Config
	memory    *memory.Memory // the board's
	board     *wire.Board
	doorbells []*os.File
	settling  []*Settling
	tried     [][]bool // by source and target: there is a channel, or there never will be

	mu      sync.Mutex
	pairs   []*pair
	ends    [][]end // by local rank, in the order in which the rank fetches them
	ended   []bool
	made    int  // pairs and fars that ranks fetch, in this order
	sealing bool // mirrored channels are judged on the interface
	fars    []*far
	sockets []*socket // by local rank; nil: it has none
}

// pair is a channel between two ranks.
type pair struct {
	source, target int
	memory         *memory.Memory
	channel        *wire.Channel
}

// end is a rank's end of a channel, or of a pair of mirrored channels.
type end struct {
	*pair
	producer bool
	far      *far // instead
}

// New makes the table of a new job and leaves it with the keeper.
func New(c Config) (*Table, error) {
	t := newTable(c)
	var err error
	if t.memory, err = memory.Create("board", wire.BoardSize(len(c.Ranks))); err != nil {
		return nil, err
	}
	if err := t.keepMemory(keptBoard, nil, t.memory); err != nil {
		return nil, fail(t, err)
	}
	for local := range c.Ranks {
		fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
		if err != nil {
			return nil, fail(t, fmt.Errorf("make doorbell: %w", err))
		}
		t.doorbells = append(t.doorbells, os.NewFile(uintptr(fd), "doorbell"))
		if err := c.Keeper.Keep(keep.Item{Name: doorbellItem(local), Files: t.doorbells[local:]}); err != nil {
			return nil, fail(t, err)
		}
	}
	return t.open()
}

// Adopt takes over the table of the previous node kernel from the items kept of it. The items'
// files remain the caller's.
func Adopt(c Config, items map[string]*keep.Item) (*Table, error) {
	t := newTable(c)
	var err error
	if t.memory, err = items[keptBoard].Memory(0, wire.BoardSize(len(c.Ranks))); err != nil {
		return nil, err
	}
	for local := range c.Ranks {
		item := items[doorbellItem(local)]
		if item == nil || len(item.Files) != 1 {
			return nil, fail(t, fmt.Errorf("the doorbell of rank %d was not kept", c.Ranks[local].Number))
		}
		f, err := keep.Duplicate(item.Files[0].Fd(), "doorbell")
		if err != nil {
			return nil, fail(t, err)
		}
		t.doorbells = append(t.doorbells, f)
	}
	if err := t.adoptChannels(items); err != nil {
		return nil, fail(t, err)
	}
	return t.open()
}

// adoptChannels takes over the channels in the order in which they were made.
func (t *Table) adoptChannels(items map[string]*keep.Item) error {
	fars, err := t.adoptFars(items)
	if err != nil {
		return err
	}
	for n := range Limit + MirrorLimit {
		if f := fars[n]; f != nil {
			t.show(f)
		} else if item := items[pairItem(n)]; item != nil {
			if err := t.adoptPair(item); err != nil {
				return err
			}
		}
	}
	return nil
}

func newTable(c Config) *Table {
	t := &Table{config: c, ends: make([][]end, len(c.Ranks)), ended: make([]bool, len(c.Ranks)), sockets: make([]*socket, len(c.Ranks))}
	for range c.Ranks {
		t.tried = append(t.tried, make([]bool, len(c.Ranks)))
	}
	return t
}

// fail closes an incomplete table.
func fail(t *Table, err error) error {
	t.Close()
	return err
}

func (t *Table) open() (*Table, error) {
	var err error
	if t.board, err = wire.OpenBoard(t.memory.Bytes(), len(t.config.Ranks)); err != nil {
		return nil, fail(t, err)
	}
	for local, r := range t.config.Ranks {
		t.settling = append(t.settling, NewSettling(r.Passed, r.Area.Settled().Store))
		t.announce(local)
	}
	return t, nil
}

func doorbellItem(local int) string { return fmt.Sprint(keptDoorbells, local) }

func pairItem(n int) string { return fmt.Sprint(keptPairs, n) }

func (t *Table) keepMemory(name string, words []byte, m *memory.Memory) error {
	f, err := keep.File(m)
	if err != nil {
		return err
	}
	defer f.Close()
	return t.config.Keeper.Keep(keep.Item{Name: name, Words: words, Files: []*os.File{f}})
}

// Settling returns the Settling of a local rank.
func (t *Table) Settling(local int) *Settling { return t.settling[local] }

// Speak notes that a local rank sends a message to another through the node kernel, and makes a
// channel between them if there is none. It is not safe for concurrent use for the same source.
func (t *Table) Speak(source, target int) {
	if t.tried[source][target] {
		return
	}
	t.tried[source][target] = true
	if err := t.connect(source, target); err != nil {
		t.config.Log("ranks %d and %d speak through the node kernel: %v", t.config.Ranks[source].Number, t.config.Ranks[target].Number, err)
	}
}

func (t *Table) connect(source, target int) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.pairs) >= Limit || t.ended[target] {
		return nil
	}
	m, err := memory.Create("channel", wire.ChannelSize)
	if err != nil {
		return err
	}
	words, err := json.Marshal([2]int{source, target})
	if err == nil {
		err = t.keepMemory(pairItem(t.made), words, m)
	}
	if err == nil {
		err = t.add(source, target, m)
	}
	if err != nil {
		m.Close()
		return err
	}
	// The target must know of the channel before a message can be in it.
	t.announce(target)
	t.announce(source)
	return nil
}

func (t *Table) adoptPair(item *keep.Item) error {
	var ranks [2]int
	if err := json.Unmarshal(item.Words, &ranks); err != nil {
		return fmt.Errorf("%s: %w", item.Name, err)
	}
	source, target := ranks[0], ranks[1]
	if source < 0 || target < 0 || source >= len(t.config.Ranks) || target >= len(t.config.Ranks) {
		return fmt.Errorf("%s: there are no local ranks %d and %d", item.Name, source, target)
	}
	m, err := item.Memory(0, wire.ChannelSize)
	if err != nil {
		return err
	}
	if err := t.add(source, target, m); err != nil {
		m.Close()
		return err
	}
	t.tried[source][target] = true
	return nil
}

// add adds a channel, which its two ranks may fetch once it is announced to them.
func (t *Table) add(source, target int, m *memory.Memory) error {
	c, err := wire.OpenChannel(m.Bytes())
	if err != nil {
		return err
	}
	p := &pair{source, target, m, c}
	t.pairs = append(t.pairs, p)
	t.ends[target] = append(t.ends[target], end{pair: p})
	t.ends[source] = append(t.ends[source], end{pair: p, producer: true})
	t.made++
	return nil
}

// announce publishes to a rank how many channels it has.
func (t *Table) announce(local int) {
	t.config.Ranks[local].Area.Channels().Store(uint32(len(t.ends[local])))
}

// Fetched is a rank's end of a channel, or of a pair of mirrored channels. The files are the
// caller's.
type Fetched struct {
	Local    int          // the local rank at the other end
	Producer bool         // this rank is the producer
	Mirror   *wire.Mirror // instead of both
	Memory   *os.File
	Bell     *os.File // the other rank's doorbell, or for mirrored channels the socket of this one
}

// Fetch returns a channel of a local rank by its index in the order in which they were announced.
func (t *Table) Fetch(local int, index uint64) (f Fetched, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if index >= uint64(len(t.ends[local])) {
		return f, fmt.Errorf("rank %d has no channel %d", t.config.Ranks[local].Number, index)
	}
	e := t.ends[local][index]
	if e.far != nil {
		return e.far.fetch(t)
	}
	if f.Local, f.Producer = e.source, e.producer; e.producer {
		f.Local = e.target
	}
	if f.Memory, err = keep.File(e.memory); err != nil {
		return f, err
	}
	if f.Bell, err = t.Doorbell(uint64(f.Local)); err != nil {
		f.Memory.Close()
	}
	return f, err
}

// Doorbell returns the doorbell of a local rank, in a file of the caller's.
func (t *Table) Doorbell(local uint64) (*os.File, error) {
	if local >= uint64(len(t.doorbells)) {
		return nil, fmt.Errorf("there is no local rank %d", local)
	}
	return keep.Duplicate(t.doorbells[local].Fd(), "doorbell")
}

// Board returns the board, in a file of the caller's.
func (t *Table) Board() (*os.File, error) { return keep.File(t.memory) }

// SetPath publishes the wire.Path bits to all ranks.
func (t *Table) SetPath(bits uint32) {
	for _, r := range t.config.Ranks {
		r.Area.Path().Store(bits)
	}
}

// Decided returns the number of the last barrier on the board in which this node's part is done.
// The ranks can write it: it may be any value.
func (t *Table) Decided() uint64 { return t.board.Decided() }

// Bound lets the ranks complete no barrier with this number or a higher one on the board; 0 changes
// nothing. The words in the areas, which outlive the node kernel, are never raised again.
func (t *Table) Bound(number uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, r := range t.config.Ranks {
		if old := r.Area.Bound().Load(); number != 0 && (old == 0 || old > number) {
			r.Area.Bound().Store(number)
		}
	}
}

// Ended notes that a local rank has ended: from now on, messages to it go to the node kernel, and
// so do ranks that wait for it in a barrier. The caller rings the doorbells of sleeping ranks.
func (t *Table) Ended(local int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.ended[local] {
		t.ended[local] = true
		t.takeOver(local)
	}
	for _, p := range t.pairs {
		if p.target == local {
			p.channel.Closed().Store(wire.ChannelEnded)
		}
	}
	t.board.End(local)
}

// mostCounted bounds the count of a channel, which its ranks can write.
const mostCounted = math.MaxUint64 / (4 * (Limit + MirrorLimit))

// Counts returns how many messages a local rank has sent through channels, and how many were sent
// to it. The job's ranks can put any numbers here, but no sum overflows.
func (t *Table) Counts(local int) (sent, arrived uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, e := range t.ends[local] {
		switch {
		case e.far != nil:
			sent += counted(e.far.out)
			arrived += counted(e.far.in)
		case e.producer:
			sent += counted(e.channel)
		default:
			arrived += counted(e.channel)
		}
	}
	return sent, arrived
}

func counted(c *wire.Channel) uint64 { return min(c.Count().Load(), mostCounted) }

// Close releases everything. The ranks keep their mappings.
func (t *Table) Close() {
	for _, p := range t.pairs {
		p.memory.Close()
	}
	for _, f := range t.fars {
		if f.sealed {
			t.config.Seals.Leave(f.peering(t))
		}
		f.memory.Close()
	}
	for _, s := range t.sockets {
		if s != nil {
			s.file.Close()
		}
	}
	for _, f := range t.doorbells {
		f.Close()
	}
	t.memory.Close()
}
