package message

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"margay/kernel/extension"
	"margay/kernel/keep"
	"margay/kernel/slot"
	"margay/kernel/task"
	"margay/kernel/wire"
	"margay/nimble/memory"
	"margay/nimble/state"
)

// The names under which a job's init keeps what belongs to the job's messages, besides task.AppFile: the rank's end of its
// socket.
const (
	keptLedger     = "ledger"
	keptRanks      = "rank/"      // and the rank's number and "/kernel": socket, area, both ends of the bell
	keptRegions    = "region/"    // and the region's name: its memory
	keptExtensions = "extension/" // and its handle: the object, and the memory of its maps
)

func rankItem(number int) string { return fmt.Sprintf("%s%d/kernel", keptRanks, number) }

func (j *Job) ledgerSize() int {
	return ledgerSize(len(j.config.Members), len(j.config.Nodes), len(j.config.Local))
}

func (j *Job) openLedger(m *memory.Memory) {
	j.ledger = newLedger(m, len(j.config.Members), len(j.config.Nodes), len(j.config.Local))
}

// create makes everything that a new job needs and leaves it with the keeper.
func (j *Job) create() error {
	m, err := memory.Create(keptLedger, j.ledgerSize())
	if err != nil {
		return err
	}
	j.openLedger(m)
	if err := j.keepMemory(keptLedger, m); err != nil {
		return err
	}
	for index, number := range j.config.Local {
		r := j.newRank(index, number)
		if err := r.create(); err != nil {
			return err
		}
	}
	return nil
}

func (j *Job) newRank(index, number int) *rank {
	r := &rank{
		job: j, number: number, index: index, batches: make([]*batch, len(j.config.Members)), costs: make(map[uint32]uint64),
		rung: make(chan struct{}, 1), ending: make(chan struct{}), pumped: make(chan struct{}),
	}
	j.local[number] = r
	return r
}

// keepMemory leaves shared memory with the keeper.
func (j *Job) keepMemory(name string, memories ...*memory.Memory) error {
	item := keep.Item{Name: name}
	defer item.CloseFiles()
	for _, m := range memories {
		f, err := dupMemory(m)
		if err != nil {
			return err
		}
		item.Files = append(item.Files, f)
	}
	return j.config.Keeper.Keep(item)
}

// dupMemory returns another descriptor of shared memory.
func dupMemory(m *memory.Memory) (*os.File, error) {
	fd, ok := m.FD()
	if !ok {
		return nil, fmt.Errorf("memory %s is not shared", m.Name())
	}
	return dupFD(uintptr(fd), m.Name())
}

// create makes the area, the bell and the socket of a rank and leaves them with the keeper.
func (r *rank) create() error {
	j := r.job
	var err error
	if r.memory, err = memory.Create("area", wire.AreaSize(len(j.config.Nodes))); err != nil {
		return err
	}
	header := wire.Header{
		Job: j.config.Job, Rank: uint32(r.number), Size: uint32(len(j.config.Nodes)), Node: uint32(j.engine.config.Self),
		LocalRank: uint32(r.index), LocalSize: uint32(len(j.config.Local)), Nodes: uint32(len(j.config.Members)),
	}
	nodes := make([]uint32, len(j.config.Nodes))
	for i, n := range j.config.Nodes {
		nodes[i] = uint32(n)
	}
	if r.area, err = wire.NewArea(r.memory.Bytes(), header, nodes); err != nil {
		return err
	}
	near, app, err := socketPair(unix.SOCK_SEQPACKET)
	if err != nil {
		return err
	}
	defer near.Close()
	defer app.Close()
	// A plain C program waits for its answers.
	if err := unix.SetNonblock(int(app.Fd()), false); err != nil {
		return fmt.Errorf("make socket block: %w", err)
	}
	if r.bell, r.far, err = socketPair(unix.SOCK_STREAM); err != nil {
		return err
	}
	area, err := dupMemory(r.memory)
	if err != nil {
		return err
	}
	defer area.Close()
	if err := j.config.Keeper.Keep(keep.Item{Name: task.AppFile(r.number), Files: []*os.File{app}}); err != nil {
		return err
	}
	if err := j.config.Keeper.Keep(keep.Item{Name: rankItem(r.number), Files: []*os.File{near, area, r.bell, r.far}}); err != nil {
		return err
	}
	return r.attach(near)
}

// socketPair makes two connected sockets that do not block.
func socketPair(kind int) (a, b *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make sockets: %w", err)
	}
	return os.NewFile(uintptr(fds[0]), "near"), os.NewFile(uintptr(fds[1]), "far"), nil
}

// attach takes this end of the rank's socket and the rings in its area.
func (r *rank) attach(near *os.File) error {
	conn, err := net.FileConn(near)
	if err != nil {
		return fmt.Errorf("rank %d: %w", r.number, err)
	}
	socket, ok := conn.(*net.UnixConn)
	if !ok {
		conn.Close()
		return fmt.Errorf("rank %d: its socket is a %T", r.number, conn)
	}
	r.socket = socket
	if r.raw, err = r.bell.SyscallConn(); err != nil {
		return fmt.Errorf("rank %d: its bell: %w", r.number, err)
	}
	r.sent = r.area.SendConsumer()
	r.received = r.area.ReceiveProducer()
	return nil
}

// adopt takes up what the node kernel before this one has left with the keeper.
func (j *Job) adopt(items []*keep.Item) error {
	byName := make(map[string]*keep.Item)
	for _, item := range items {
		byName[item.Name] = item
	}
	m, err := attachMemory(byName[keptLedger], 0, j.ledgerSize())
	if err != nil {
		return err
	}
	j.openLedger(m)
	for index, number := range j.config.Local {
		if err := j.newRank(index, number).adopt(byName[rankItem(number)]); err != nil {
			return err
		}
		j.wasInUse = j.wasInUse || j.ledger.joined[index] != 0
	}
	for name, item := range byName {
		if region, ok := strings.CutPrefix(name, keptRegions); ok {
			m, err := attachMemory(item, 0, -1)
			if err != nil {
				return err
			}
			j.config.Set.AdoptRegion(region, m)
		}
	}
	if err := j.adoptExtensions(byName); err != nil {
		return err
	}
	j.mend()
	return nil
}

// mend completes what the node kernel before this one was in the middle of, and finds what got lost with it.
func (j *Job) mend() {
	if sent, came := j.ledger.sent[j.self], j.ledger.received[j.self]; sent != came {
		j.lost(j.self, sent, came)
	}
	if j.parent() < 0 {
		*j.ledger.released = *j.ledger.told
	}
	for _, r := range j.local {
		if n := j.ledger.waiting[r.index]; n != 0 {
			j.fault("%d messages for rank %d, which had no room for them, were lost when the node kernel of node%d was started again",
				n, r.number, j.engine.config.Self)
		}
		j.granted[r.number] = j.ledger.taken[r.index][j.self]
		r.seen = *j.ledger.released
		r.release(*j.ledger.released)
		r.ring() // who has been told to wake up may not have been woken
	}
}

func extensionItem(handle uint32) string { return fmt.Sprint(keptExtensions, handle) }

// dropExtension has the keeper forget an extension that was removed.
func (j *Job) dropExtension(handle uint32) error { return j.config.Keeper.Drop(extensionItem(handle)) }

// adoptExtensions takes up the job's extensions in the order in which they were inserted.
func (j *Job) adoptExtensions(items map[string]*keep.Item) error {
	kept := make(map[uint32]*keep.Item)
	for name, item := range items {
		if number, ok := strings.CutPrefix(name, keptExtensions); ok {
			handle, err := strconv.ParseUint(number, 10, 32)
			if err != nil {
				return fmt.Errorf("%s is no extension", name)
			}
			kept[uint32(handle)] = item
		}
	}
	for _, handle := range slices.Sorted(maps.Keys(kept)) {
		if err := j.adoptExtension(handle, kept[handle]); err != nil {
			return err
		}
	}
	return nil
}

// attachMemory maps a kept piece of shared memory; a size of -1 is the size that it has.
func attachMemory(item *keep.Item, file, size int) (*memory.Memory, error) {
	if item == nil || file >= len(item.Files) {
		return nil, errors.New("a piece of memory was not kept")
	}
	f := item.Files[file]
	if size < 0 {
		info, err := f.Stat()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", item.Name, err)
		}
		size = int(info.Size())
	}
	return memory.Attach(item.Name, int(f.Fd()), size)
}

func (r *rank) adopt(item *keep.Item) error {
	if item == nil || len(item.Files) != 4 {
		return fmt.Errorf("rank %d: its area was not kept", r.number)
	}
	var err error
	if r.memory, err = attachMemory(item, 1, wire.AreaSize(len(r.job.config.Nodes))); err != nil {
		return err
	}
	if r.area, _, err = wire.OpenArea(r.memory.Bytes()); err != nil {
		return err
	}
	near := item.Files[0]
	r.bell, r.far = item.Files[2], item.Files[3]
	item.Files = []*os.File{near, item.Files[1]}
	return r.attach(near)
}

// extensionWords are kept with an extension.
type extensionWords struct {
	Name     string
	Slot     slot.Name
	Settings []extension.Setting
	Maps     []string // in the order of the files after the first
}

// keepExtension leaves an extension with the keeper: its object, and the memory that holds its state.
func (j *Job) keepExtension(x *extension.Extension, r extension.Request) error {
	object, err := memory.Create("object", len(r.Object))
	if err != nil {
		return err
	}
	defer object.Close()
	copy(object.Bytes(), r.Object)
	words := extensionWords{Name: r.Name, Slot: r.Slot, Settings: r.Settings}
	item := keep.Item{Name: extensionItem(x.Handle())}
	defer item.CloseFiles()
	f, err := dupMemory(object)
	if err != nil {
		return err
	}
	item.Files = append(item.Files, f)
	for _, name := range x.Maps() {
		err := x.Lend(name, func(m *state.Map) error {
			if region, err := j.config.Set.Region(name, 0); err == nil && region == m.Memory() {
				return nil // kept as a region
			}
			f, err := dupMemory(m.Memory())
			if err == nil {
				words.Maps = append(words.Maps, name)
				item.Files = append(item.Files, f)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	if item.Words, err = json.Marshal(words); err != nil {
		return err
	}
	return j.config.Keeper.Keep(item)
}

func (j *Job) adoptExtension(handle uint32, item *keep.Item) error {
	var words extensionWords
	if err := json.Unmarshal(item.Words, &words); err != nil {
		return fmt.Errorf("%s: %w", item.Name, err)
	}
	if len(item.Files) != 1+len(words.Maps) {
		return fmt.Errorf("%s with %d files was not kept whole", item.Name, len(item.Files))
	}
	object, err := attachMemory(item, 0, -1)
	if err != nil {
		return err
	}
	defer object.Close()
	r := extension.Request{
		Name: words.Name, Slot: words.Slot, Object: append([]byte(nil), object.Bytes()...), Settings: words.Settings,
		Handle: handle, Memories: make(map[string]*memory.Memory),
	}
	for i, name := range words.Maps {
		var m *memory.Memory
		if m, err = attachMemory(item, 1+i, -1); err != nil {
			break
		}
		r.Memories[name] = m
	}
	if err == nil {
		_, err = j.config.Set.Insert(r)
	}
	if err != nil {
		for _, m := range r.Memories {
			m.Close()
		}
	}
	return err
}

// release gives back what the job has.
func (j *Job) release() {
	j.cancel()
	for _, r := range j.local {
		r.closeFiles()
		r.far.Close()
		if r.memory != nil {
			r.memory.Close()
		}
	}
	if j.ledger != nil {
		j.ledger.memory.Close()
	}
	j.event.Close()
}
