package margay

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"margay/internal/train"
	"margay/kernel/abi/mirror"
	"margay/kernel/abi/onesided"
	"margay/kernel/abi/wire"
)

// datagramsEach bounds the datagrams that a poll takes, so that strangers cannot keep it busy.
const datagramsEach = 64

// acknowledgeEach is how many messages are handled between two looks whether an acknowledgement is
// late.
const acknowledgeEach = 8

// familiar is how many datagrams have come from the only other end before the socket is connected
// to it.
const familiar = 256

// mirrors are the mirrored channels of the rank with ranks of other nodes. They are guarded by
// Job.sending, and change only under Job.handling.
type mirrors struct {
	socket  int    // -1: there is none
	ends    []*far // in the order of fetching
	trains  *train.Sender
	answers onesided.Answers // to the requests of a train
	number  []*far           // by the number of this end, nil: it was not fetched
	to      []*far           // by rank
	start   time.Time
	buffer  []byte // of datagrams that are sent
	train   [][]byte
	inbox   *inbox

	connected *far // the only one, to which the socket is connected, or nil
	familiar  int  // datagrams of mirrored channels since the last request by datagrams

	arm    chan struct{}
	again  int           // eventfd that has watch look again at what it waits for
	polled time.Duration // until when watch waits at most; noTime: for ever
}

// noTime is later than any time.
const noTime = math.MaxInt64

// far is this rank's end of the mirrored channels with another rank.
type far struct {
	*mirror.End
	rank    int // at the other end
	out     *wire.Channel
	seal    *atomic.Uint64 // of the channel from it (wire.Channel.Seal)
	key     uint64
	peerKey uint64 // of the other end
	address address
	to      unix.SockaddrInet4 // the same
	direct  *direct            // nil: requests about windows pass the node kernels
	journal *onesided.Journal  // of the other rank's requests about windows of this one
}

func (j *Job) initMirrors() {
	j.mirrors = mirrors{socket: -1, again: -1, number: make([]*far, j.Size()), to: make([]*far, j.Size()), start: time.Now(), arm: make(chan struct{}, 1)}
}

// openMirror takes the mirrored channels that the node kernel describes. The caller holds
// Job.handling and Job.sending.
func (j *Job) openMirror(m wire.Mirror, memory []byte, socket *os.File) error {
	out, in, err := wire.OpenMirror(memory)
	if err != nil {
		return err
	}
	if int(m.Rank) >= j.Size() || int(m.Number) >= j.Size() || m.Largest < mirror.Least || m.Largest > mirror.Most {
		return fmt.Errorf("the node kernel describes mirrored channels as %+v", m)
	}
	if j.mirrors.socket < 0 {
		if err := j.openSocket(socket); err != nil {
			return err
		}
	}
	journal, err := onesided.OpenJournal(in.Journal()[:onesided.JournalSize], onesided.ByRank)
	if err != nil {
		return err
	}
	f := &far{
		End:  mirror.NewEnd(out, in, mirror.Peer{Number: m.PeerNumber, Key: m.PeerKey, Largest: int(m.Largest)}),
		rank: int(m.Rank), out: out, seal: in.Seal(), key: m.Key, peerKey: m.PeerKey, journal: journal, address: newAddress(m.Address, m.Port), to: newSockaddr(m.Address, m.Port), direct: j.newDirect(&m),
	}
	j.mirrors.disconnect()
	j.mirrors.ends = append(j.mirrors.ends, f)
	j.mirrors.number[m.Number], j.mirrors.to[m.Rank] = f, f
	j.out.OpenMirror(out, int(m.Rank), int(m.Largest)-mirror.HeaderSize)
	j.in.OpenMirror(in, m.Rank)
	return nil
}

// openSocket takes the rank's socket and begins to wait for datagrams while the rank sleeps.
func (j *Job) openSocket(socket *os.File) (err error) {
	m := &j.mirrors
	if m.again, err = unix.Eventfd(0, unix.EFD_CLOEXEC); err != nil {
		return fmt.Errorf("make an event: %w", err)
	}
	if m.socket, err = unix.FcntlInt(socket.Fd(), unix.F_DUPFD_CLOEXEC, 0); err != nil {
		unix.Close(m.again)
		return fmt.Errorf("duplicate a socket: %w", err)
	}
	m.trains = train.NewSender(m.socket)
	m.buffer, m.inbox = make([]byte, 0, train.Bytes+mirror.Most), newInbox(m.socket)
	go j.watch(m.socket, m.again)
	return nil
}

// watch wakes goroutines that sleep when there are datagrams, and when one must be sent again. It
// waits outside the Go runtime's poller, which would wake a thread for each datagram that a polling
// rank takes.
func (j *Job) watch(socket, again int) {
	defer unix.Close(socket)
	defer unix.Close(again)
	for !j.finalized.Load() {
		<-j.mirrors.arm
		for !j.finalized.Load() {
			p := []unix.PollFd{{Fd: int32(socket), Events: unix.POLLIN}, {Fd: int32(again), Events: unix.POLLIN}}
			_, err := unix.Ppoll(p, j.untilDue(), nil)
			if p[1].Revents != 0 {
				_, _ = unix.Read(again, make([]byte, len(one)))
			} else if err != unix.EINTR {
				break
			}
		}
		j.mu.Lock()
		j.rung++
		j.changed.Broadcast()
		j.mu.Unlock()
	}
}

// untilDue returns the time until a datagram must be sent that waits for none; nil: never.
func (j *Job) untilDue() *unix.Timespec {
	j.sending.Lock()
	defer j.sending.Unlock()
	m := &j.mirrors
	if m.polled = m.due(); m.polled == noTime {
		return nil
	}
	t := unix.NsecToTimespec(int64(max(m.polled-m.now(), 0)))
	return &t
}

// due returns when the next datagram must be sent that waits for none; noTime: never. The caller
// holds Job.sending.
func (m *mirrors) due() time.Duration {
	next := time.Duration(noTime)
	for _, f := range m.ends {
		if due := f.Due(); due != 0 {
			next = min(next, due)
		}
		if f.direct == nil {
			continue
		}
		if due := f.direct.Due(); due != 0 {
			next = min(next, due)
		}
	}
	return next
}

// armWatch makes watch wait for datagrams.
func (m *mirrors) armWatch() {
	select {
	case m.arm <- struct{}{}:
	default:
	}
}

// closeMirrors ends watch, which closes the socket. The caller holds Job.sending and has set
// Job.finalized.
func (j *Job) closeMirrors() {
	if m := &j.mirrors; m.socket >= 0 {
		_, _ = unix.Write(m.again, one)
		m.armWatch()
	}
}

// now returns the time that the protocol runs on.
func (m *mirrors) now() time.Duration { return time.Since(m.start) }

// transmit sends the datagrams of an end that are due, in trains. The caller holds Job.sending.
func (m *mirrors) transmit(f *far, now time.Duration) {
	all := m.buffer
	for {
		b := f.Emit(all[len(all):], now)
		if n := len(m.train); n > 0 && (len(b) == 0 || len(b) > len(m.train[0]) || len(m.train[n-1]) < len(m.train[0]) || n == train.Most) {
			m.leave(f)
		}
		if len(b) == 0 {
			return
		}
		m.train, all = append(m.train, b), all[:len(all)+len(b)]
		if len(all) > train.Bytes-mirror.Most {
			m.leave(f)
			all = m.buffer
		}
	}
}

// leave sends the train. The caller holds Job.sending.
func (m *mirrors) leave(f *far) {
	m.send(m.train, f)
	m.train = m.train[:0]
}

// send sends datagrams to an end: of one length, but the last may be shorter. The caller holds
// Job.sending.
func (m *mirrors) send(datagrams [][]byte, f *far) {
	if len(datagrams) == 1 {
		m.sendOne(datagrams[0], f)
	} else {
		m.trains.Send(datagrams, &f.to)
	}
}

// answer sends the answers to the requests of an address. The caller holds Job.sending.
func (m *mirrors) answer(from address) {
	for t := range m.answers.Trains() {
		if i := slices.IndexFunc(m.ends, func(f *far) bool { return f.address == from }); i >= 0 {
			m.send(t, m.ends[i])
		}
	}
}

// sendOne sends a datagram to an end. The caller holds Job.sending.
func (m *mirrors) sendOne(b []byte, f *far) {
	if f == m.connected {
		switch send(m.socket, b, nil) {
		case 0:
			return
		case unix.EDESTADDRREQ: // the node kernel has disconnected it
			m.connected = nil
		}
	}
	send(m.socket, b, &f.address)
}

// acquaint connects the socket to the only rank with which this one has exchanged datagrams for a
// while. Linux then looks up no route for a datagram, neither on its way out nor on its way in. The
// caller holds Job.sending.
func (m *mirrors) acquaint() {
	f := m.ends[0]
	if len(m.ends) > 1 || m.connected != nil || m.familiar < familiar || f.direct != nil && !f.direct.Idle() {
		return
	}
	m.familiar = 0
	if f.out.Shared().Load() != 0 || unix.Connect(m.socket, &f.to) != nil {
		return
	}
	m.connected = f
	if f.out.Shared().Load() != 0 { // the node kernel may have disconnected it before
		m.disconnect()
	}
}

// disconnect makes the socket receive datagrams from everywhere. The caller holds Job.sending.
func (m *mirrors) disconnect() {
	m.familiar = 0
	if m.connected != nil && train.Disconnect(m.socket) == nil {
		m.connected = nil
	}
}

// receive takes a train, if one has come. It returns the number of datagrams taken, and whether a
// one-sided operation was answered. The caller holds Job.handling.
func (j *Job) receive() (came int, some bool) {
	m := &j.mirrors
	if len(m.ends) == 0 {
		return 0, false
	}
	j.sending.Lock()
	defer j.sending.Unlock()
	if datagrams, from, ok := m.inbox.receive(); ok {
		now := m.now()
		for b := range datagrams {
			switch came++; {
			case onesided.IsAnswer(b):
				some = j.takeAnswer(b, from, now) || some
			case onesided.Is(b):
				if came <= onesided.Outstanding {
					j.takeRequest(b, from)
				}
			default:
				m.arrive(b, from, now)
			}
		}
		m.answer(from)
		came = max(came, 1)
	}
	m.acquaint()
	return came, some
}

// transmitDue sends the datagrams that are due. The caller holds Job.handling.
func (j *Job) transmitDue() {
	m := &j.mirrors
	if len(m.ends) == 0 {
		return
	}
	j.sending.Lock()
	defer j.sending.Unlock()
	now := m.now()
	for _, f := range m.ends {
		if f.Busy() {
			m.transmit(f, now)
		}
		if f.direct != nil && !f.direct.Idle() {
			m.request(f)
		}
	}
}

// acknowledge sends acknowledgements that should have left: handlers may take long, and the other
// rank would send all again. The caller holds Job.handling.
func (j *Job) acknowledge() {
	m := &j.mirrors
	if len(m.ends) == 0 {
		return
	}
	j.sending.Lock()
	defer j.sending.Unlock()
	now := m.now()
	for _, f := range m.ends {
		if f.Late(now) {
			m.transmit(f, now)
		}
	}
}

// arrive takes a datagram, which may be a stranger's.
func (m *mirrors) arrive(b []byte, from address, now time.Duration) {
	h, data, err := mirror.Parse(b)
	if err != nil || h.Number >= uint32(len(m.number)) {
		return
	}
	if f := m.number[h.Number]; f != nil && f.key == h.Key^f.seal.Load() && f.address == from {
		f.Arrive(&h, data, now)
		m.familiar++
	}
}

// rest sends datagrams that are due before the rank sleeps, and makes watch wake it in time.
func (j *Job) rest() {
	j.sending.Lock()
	defer j.sending.Unlock()
	m := &j.mirrors
	if j.finalized.Load() {
		return
	}
	for _, f := range m.ends {
		f.Rest()
		m.transmit(f, m.now())
		if f.direct != nil {
			m.request(f)
		}
	}
	m.hasten()
}

// hasten is mirrors.hasten until Finalize.
func (j *Job) hasten() {
	j.sending.Lock()
	defer j.sending.Unlock()
	if !j.finalized.Load() {
		j.mirrors.hasten()
	}
}

// hasten has watch wake sleeping goroutines in time for the next datagram that must be sent.
// The caller holds Job.sending.
func (m *mirrors) hasten() {
	if due := m.due(); due < m.polled {
		m.polled = due
		_, _ = unix.Write(m.again, one)
	}
}

// settle handles messages until all messages in mirrored channels have arrived and all requests by
// datagrams are answered, except those that other goroutines send while it waits.
func (j *Job) settle(ctx context.Context) error {
	wait := j.unsettled()
	if len(wait) == 0 {
		return nil
	}
	return j.await(ctx, func(int) bool {
		j.sending.Lock()
		defer j.sending.Unlock()
		for f, w := range wait {
			if !f.Reached(w.position) && f.out.Closed().Load() != wire.ChannelEnded || f.direct != nil && !f.direct.Answered(w.request) {
				return false
			}
		}
		return true
	})
}

// unsettled is what settle waits for at an end.
type unsettled struct {
	position uint64 // of the channel, behind the messages
	request  uint64 // the number after the last request
}

// unsettled returns the ends with messages that have not arrived or requests that are not answered,
// and makes the other ends acknowledge messages at once.
func (j *Job) unsettled() (wait map[*far]unsettled) {
	j.sending.Lock()
	defer j.sending.Unlock()
	m := &j.mirrors
	for _, f := range m.ends {
		w := unsettled{position: j.out.Spoken(f.rank)}
		arrived := f.Reached(w.position)
		if f.direct != nil {
			w.request = f.direct.Next()
		}
		if arrived && (f.direct == nil || f.direct.Idle()) {
			continue
		}
		if wait == nil {
			wait = make(map[*far]unsettled)
		}
		wait[f] = w
		if !arrived {
			f.Ask()
			m.transmit(f, m.now())
		}
	}
	return wait
}

// newAddress returns the address of an IPv4 address and a port.
func newAddress(host uint32, port uint16) (a address) {
	a.Family = unix.AF_INET
	binary.BigEndian.PutUint32(a.Addr[:], host)
	a.setPort(port)
	return a
}

// newSockaddr is newAddress for package unix.
func newSockaddr(host uint32, port uint16) unix.SockaddrInet4 {
	a := unix.SockaddrInet4{Port: int(port)}
	binary.BigEndian.PutUint32(a.Addr[:], host)
	return a
}
