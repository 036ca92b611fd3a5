package message

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"margay/kernel/abi/id"
	"margay/kernel/abi/wire"
	"margay/kernel/channel"
	"margay/kernel/extension"
	"margay/kernel/keep"
	"margay/kernel/task"
	"margay/nimble/memory"
)

// The names under which a job's init keeps what belongs to the job's messages, besides task.AppFile, the rank's end of its
// socket, and the extensions of the job (package extension).
const (
	keptLedger  = "ledger"
	keptFault   = "fault"   // why the job cannot go on
	keptRanks   = "rank/"   // and the rank's number and "/kernel": socket, area, both ends of the bell and of the alarm
	keptRegions = "region/" // and the region's name: its memory
)

func rankItem(number id.Rank) string { return fmt.Sprintf("%s%d/kernel", keptRanks, number) }

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
	j.channels, err = channel.New(j.channelConfig())
	return err
}

func (j *Job) newRank(index int, number id.Rank) *rank {
	r := &rank{
		job: j, number: number, index: index, batches: make([]*batch, len(j.config.Members)), costs: make(map[int]uint64),
		rung: make(chan struct{}, 1), ending: make(chan struct{}), pumped: make(chan struct{}),
	}
	if index < len(j.config.Cores) {
		r.core = j.config.Cores[index]
	}
	j.local[number] = r
	return r
}

// keepMemory leaves shared memory with the keeper.
func (j *Job) keepMemory(name string, memories ...*memory.Memory) error {
	item := keep.Item{Name: name}
	defer item.CloseFiles()
	for _, m := range memories {
		f, err := keep.File(m)
		if err != nil {
			return err
		}
		item.Files = append(item.Files, f)
	}
	return j.config.Keeper.Keep(item)
}

// create makes the area, the bell and the socket of a rank and leaves them with the keeper.
func (r *rank) create() error {
	j := r.job
	var err error
	if r.memory, err = memory.Create("area", wire.AreaSize(len(j.config.Nodes))); err != nil {
		return err
	}
	header := wire.Header{
		Job: uint32(j.config.Job), Rank: uint32(r.number), Size: uint32(len(j.config.Nodes)), Node: uint32(j.engine.config.Self),
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
	for _, s := range []*socketEnds{&r.bell, &r.alarm} {
		if s.near, s.far, err = socketPair(unix.SOCK_STREAM); err != nil {
			return err
		}
	}
	// So does a thread that waits for upcalls.
	if err := unix.SetNonblock(int(r.alarm.far.Fd()), false); err != nil {
		return fmt.Errorf("make alarm block: %w", err)
	}
	area, err := keep.File(r.memory)
	if err != nil {
		return err
	}
	defer area.Close()
	if err := j.config.Keeper.Keep(keep.Item{Name: task.AppFile(r.number), Files: []*os.File{app}}); err != nil {
		return err
	}
	if err := j.config.Keeper.Keep(keep.Item{Name: rankItem(r.number), Files: []*os.File{near, area, r.bell.near, r.bell.far, r.alarm.near, r.alarm.far}}); err != nil {
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
	for _, s := range []*socketEnds{&r.bell, &r.alarm} {
		if s.raw, err = s.near.SyscallConn(); err != nil {
			return fmt.Errorf("rank %d: its bell: %w", r.number, err)
		}
	}
	r.sent = r.area.SendConsumer()
	r.ordinary.ring, r.upcalls.ring = r.area.ReceiveProducer(), r.area.UpcallProducer()
	return nil
}

// adopt takes up what the node kernel before this one has left with the keeper.
func (j *Job) adopt(items []*keep.Item) error {
	byName := make(map[string]*keep.Item)
	for _, item := range items {
		byName[item.Name] = item
	}
	m, err := byName[keptLedger].Memory(0, j.ledgerSize())
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
	if j.channels, err = channel.Adopt(j.channelConfig(), byName); err != nil {
		return err
	}
	for name, item := range byName {
		if region, ok := strings.CutPrefix(name, keptRegions); ok {
			if err := j.adoptRegion(region, item); err != nil {
				return err
			}
		}
	}
	if err := j.config.Set.Adopt(items); err != nil {
		return err
	}
	if err := j.reportAgain(byName[keptFault]); err != nil {
		return err
	}
	j.mend()
	return nil
}

func (j *Job) adoptRegion(name string, item *keep.Item) error {
	m, err := item.Memory(0, -1)
	if err != nil {
		return err
	}
	var place extension.Place
	if err := json.Unmarshal(item.Words, &place); err != nil {
		m.Close()
		return fmt.Errorf("%s: its place: %w", item.Name, err)
	}
	if err := j.config.Set.AdoptRegion(name, place, m); err != nil {
		m.Close()
		return err
	}
	return nil
}

// reportAgain reports the fault that the node kernel before this one has found.
func (j *Job) reportAgain(kept *keep.Item) error {
	if kept == nil {
		return nil
	}
	var text string
	if err := json.Unmarshal(kept.Words, &text); err != nil {
		return fmt.Errorf("%s: %w", kept.Name, err)
	}
	j.fault("%s", text)
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
		for hops := range uint8(lanes) {
			taken := j.ledger.takenOf(r.index, hops)
			j.granted[lane(r.number, hops)] = taken[j.self]
			for member := range taken {
				j.intake[r.index*lanes+int(hops)][member].came = taken[member]
			}
		}
		r.seen = *j.ledger.released
		r.release(*j.ledger.released)
		// Who has been told to wake up may not have been woken.
		r.rouse(&r.bell)
		r.rouse(&r.alarm)
	}
	if n := *j.ledger.forwarding; n != 0 {
		j.fault("%d messages that were being forwarded were lost when the node kernel of node%d was started again", n, j.engine.config.Self)
	}
}

func (r *rank) adopt(item *keep.Item) error {
	if item == nil || len(item.Files) != 6 {
		return fmt.Errorf("rank %d: its area was not kept", r.number)
	}
	var err error
	if r.memory, err = item.Memory(1, wire.AreaSize(len(r.job.config.Nodes))); err != nil {
		return err
	}
	if r.area, _, err = wire.OpenArea(r.memory.Bytes()); err != nil {
		return err
	}
	near := item.Files[0]
	r.bell.near, r.bell.far = item.Files[2], item.Files[3]
	r.alarm.near, r.alarm.far = item.Files[4], item.Files[5]
	item.Files = []*os.File{near, item.Files[1]}
	return r.attach(near)
}

// release gives back what the job has.
func (j *Job) release() {
	j.cancel()
	for _, r := range j.local {
		r.closeFiles()
		r.bell.far.Close()
		r.alarm.far.Close()
		if r.memory != nil {
			r.memory.Close()
		}
	}
	if j.channels != nil {
		j.channels.Close()
	}
	if j.ledger != nil {
		j.ledger.memory.Close()
	}
	j.event.Close()
}
