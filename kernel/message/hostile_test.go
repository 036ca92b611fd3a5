package message

import (
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"margay/ext/message/accumulate"
	"margay/internal/check"
	"margay/internal/rights"
	"margay/kernel/abi/frame"
	"margay/kernel/abi/id"
	"margay/kernel/abi/wire"
	"margay/kernel/extension"
	"margay/kernel/extension/extensiontest"
	"margay/kernel/flow"
)

// Offsets of the numbers of an area's rings: the control blocks, and the tail and head in them
// (package wire).
const (
	sendControl    = 256
	receiveControl = 512
	upcallControl  = 768
	tail           = 0
	head           = 64
)

// write overwrites a number in the area of a rank.
func (a *app) write(at int, v uint64) { binary.LittleEndian.PutUint64(a.memory[at:], v) }

// record overwrites the beginning of a record in the send ring.
func (a *app) record(at int, length uint32, kind uint16) {
	ring := a.memory[len(a.memory)-3*wire.RingSize:]
	binary.LittleEndian.PutUint32(ring[at:], length)
	binary.LittleEndian.PutUint16(ring[at+4:], kind)
}

// The job's fault names a rank that writes nonsense into its area. The rank harms neither the ranks
// beside it nor other nodes.
func TestHostileArea(t *testing.T) {
	for name, c := range map[string]struct {
		write func(a *app)
		says  string
	}{
		"tail before head":      {func(a *app) { a.write(sendControl+tail, math.MaxUint64) }, "written over"},
		"tail far ahead":        {func(a *app) { a.write(sendControl+tail, wire.RingSize+8) }, "written over"},
		"tail not on a record":  {func(a *app) { a.write(sendControl+tail, 4) }, "written over"},
		"record of no bytes":    {func(a *app) { a.record(0, 0, 1); a.write(sendControl+tail, 48) }, "record of 0 bytes"},
		"record of odd bytes":   {func(a *app) { a.record(0, 41, 1); a.write(sendControl+tail, 48) }, "record of 41 bytes"},
		"record behind tail":    {func(a *app) { a.record(0, 56, 1); a.write(sendControl+tail, 48) }, "record of 56 bytes"},
		"record of all bytes":   {func(a *app) { a.record(0, math.MaxUint32, 1); a.write(sendControl+tail, 48) }, "written over"},
		"record of no kind":     {func(a *app) { a.record(0, 48, 7); a.write(sendControl+tail, 48) }, "kind 7"},
		"record without header": {func(a *app) { a.record(0, 8, 1); a.write(sendControl+tail, 8) }, "with 8 bytes"},
		"record longer than any": {func(a *app) {
			a.record(0, wire.RingSize, 1)
			a.write(sendControl+tail, wire.RingSize)
		}, "written over"},
		"endless padding": {func(a *app) {
			for at := 0; at < wire.RingSize; at += 8 {
				a.record(at, 8, 2)
			}
			a.write(sendControl+tail, wire.RingSize)
			a.ring()
			check.Await(a.t, "end of it", func() bool {
				return binary.LittleEndian.Uint64(a.memory[sendControl+head:]) != 0 || a.area.SendWaiting().Load() == 1
			})
			a.write(sendControl+tail, math.MaxUint64)
		}, "written over"},
		"rank that is not": {func(a *app) { a.post(6, 1, 0, nil) }, "rank 6 of 6"},
		"any rank":         {func(a *app) { a.post(math.MaxUint32, 1, 0, nil) }, "rank 4294967295 of 6"},
		"barriers ahead":   {func(a *app) { a.area.Entered().Store(3) }, "3 barriers"},
		"all barriers":     {func(a *app) { a.area.Entered().Store(math.MaxUint64) }, "barriers"},
		"head before tail": {func(a *app) {
			a.write(receiveControl+head, 8)
			a.post(0, 1, 0, nil) // to itself
		}, "written over"},
		"head far back": {func(a *app) {
			a.write(receiveControl+head, 1<<63)
			a.post(0, 1, 0, nil)
		}, "written over"},
		"head of upcalls": {func(a *app) {
			a.insert(extensiontest.Object(t, upcallsAlone))
			a.area.Armed().Store(math.MaxUint32)
			a.write(upcallControl+head, 8)
			a.post(0, upcall, 0, nil)
		}, "written over"},
	} {
		t.Run(name, func(t *testing.T) {
			j := open(t, 2, 3)
			hostile, a, b := j.join(0), j.join(1), j.join(3)
			check.Await(t, "sleep of the node kernel", func() bool { return hostile.area.SendWaiting().Load() == 1 })
			c.write(hostile)
			hostile.ring()
			j.fault("rank 0 on node0", c.says)
			pass(t, a, b, 0, 300)
			pass(t, b, a, 0, 300)
			if reply := a.insert(extensiontest.Object(t, byHandler)); reply.Status != wire.StatusOK {
				t.Errorf("insert: %+v", reply)
			}
		})
	}
}

// Forbidden requests are refused and noted. A permitted request that fails is not noted.
func TestRefusedRequestsAreNoted(t *testing.T) {
	j := open(t, 1, 1)
	a := j.join(0)
	manager := j.nodes[0].manager
	victim := manager.Open(99, 1<<20)
	defer victim.Close()
	theirs, err := victim.Insert(extension.Request{Object: extensiontest.Object(t, byHandler)})
	if err != nil {
		t.Fatal(err)
	}
	mine := a.insert(extensiontest.Object(t, byHandler))
	notes := func() (texts []string) {
		for _, n := range manager.Notes(0) {
			if n.Job == j.config.Job {
				texts = append(texts, n.Text)
			}
		}
		return texts
	}
	before, other := len(notes()), uint32(theirs.Handle())
	for _, q := range []wire.Request{
		{Op: wire.OpRemove, Handle: other}, {Op: wire.OpStats, Handle: other}, {Op: wire.OpState, Handle: other, Name: "m"},
	} {
		if reply, _ := a.ask(q, nil); reply.Status != wire.StatusNotFound || strings.Contains(reply.Text, "99") {
			t.Errorf("request %d for another job's extension: %+v", q.Op, reply)
		}
	}
	if reply, _ := a.ask(wire.Request{Op: 77}, nil); reply.Status != wire.StatusInvalid {
		t.Errorf("unknown request: %+v", reply)
	}
	if reply, _ := a.ask(wire.Request{Op: wire.OpRegion, Name: "none"}, nil); reply.Status != wire.StatusNotFound {
		t.Errorf("no region: %+v", reply)
	}
	if reply := a.insert(extensiontest.Object(t, byHandler), wire.Setting{Kind: wire.SetTrusted}); reply.Status != wire.StatusRefused {
		t.Errorf("trusted: %+v", reply)
	}
	for range 2 { // the second time it is gone
		a.ask(wire.Request{Op: wire.OpRemove, Handle: mine.Handle}, nil)
	}
	says := fmt.Sprintf("rank 0 is refused: extension %d is one of job 99", theirs.Handle())
	wants := []string{says, says, says, "rank 0 is refused: request 77 is unknown", "refused: only the machine has trusted", "removed: rank 0"}
	got := notes()[before:]
	if len(got) != len(wants) {
		t.Fatalf("%d notes: %q", len(got), got)
	}
	for i, want := range wants {
		if !strings.HasPrefix(got[i], want) {
			t.Errorf("note %q, want %q", got[i], want)
		}
	}
	if _, err := victim.Find(theirs.Handle()); err != nil {
		t.Error(err)
	}
}

// A rank that overwrites its area all the time, while messages come and go, harms only itself.
func TestHostileAreaAllTheTime(t *testing.T) {
	j := open(t, 2, 3)
	hostile, a, b := j.join(0), j.join(1), j.join(3)
	stop := make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() {
		for i := uint64(1); ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			x := i * 0x9e3779b97f4a7c15
			hostile.area.Entered().Store(x >> 63)
			hostile.area.SendWaiting().Store(uint32(x))
			hostile.area.ReceiveWaiting().Store(uint32(x >> 7))
			hostile.ring()
			hostile.post(int(x>>33)%6, uint16(x), x, nil)
			if i%1000 == 0 {
				time.Sleep(time.Millisecond) // the others need the processor too
			}
		}
	})
	for i := range 300 {
		check.Await(t, "room", func() bool { return a.post(3, 1, uint64(i), nil) })
	}
	for got := 0; got < 300; {
		r, ok := b.next(time.Minute)
		if !ok || r.Peer == 1 && r.Args[0] != uint64(got) {
			t.Fatalf("message %d came as %v %v", got, ok, r.Args)
		}
		if r.Peer == 1 {
			got++
		}
	}
	close(stop)
	all.Wait()
}

// A rank gets an answer to every request, and can ask again.
func TestHostileRequests(t *testing.T) {
	j := open(t, 1, 1)
	a := j.join(0)
	good := a.insert(accumulate.Object)
	if good.Status != wire.StatusOK {
		t.Fatalf("insert: %+v", good)
	}
	encode := func(q wire.Request) []byte {
		b, err := q.Encode()
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	file := func(content string) func() *os.File {
		return func() *os.File {
			f, err := os.CreateTemp(t.TempDir(), "")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := f.WriteString(content); err != nil {
				t.Fatal(err)
			}
			return f
		}
	}
	pipe := func() *os.File { // reading it would never end
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { w.Close() })
		return r
	}
	insertion := encode(wire.Request{Op: wire.OpInsert})
	many := encode(wire.Request{Op: wire.OpInsert})
	binary.LittleEndian.PutUint32(many[12:], wire.MaxSettings+1)
	for name, c := range map[string]struct {
		bytes []byte
		file  func() *os.File
		files int
		want  wire.Status
	}{
		"one byte":             {[]byte{1}, nil, 0, wire.StatusInvalid},
		"too short":            {insertion[:len(insertion)-1], nil, 0, wire.StatusInvalid},
		"too long":             {append(slices.Clone(insertion), 0), nil, 0, wire.StatusInvalid},
		"far too long":         {make([]byte, 100_000), nil, 0, wire.StatusInvalid},
		"too many settings":    {many, nil, 0, wire.StatusInvalid},
		"no operation":         {encode(wire.Request{}), nil, 0, wire.StatusInvalid},
		"unknown operation":    {encode(wire.Request{Op: math.MaxUint32}), nil, 0, wire.StatusInvalid},
		"another version":      {encode(wire.Request{Op: wire.OpHello, Value: wire.Version + 1}), nil, 0, wire.StatusVersion},
		"insert nothing":       {insertion, nil, 0, wire.StatusInvalid},
		"insert two files":     {insertion, file("x"), 2, wire.StatusInvalid},
		"insert many files":    {insertion, file("x"), 200, wire.StatusInvalid},
		"insert an empty file": {insertion, file(""), 1, wire.StatusRefused},
		"insert text":          {insertion, file("no object"), 1, wire.StatusRefused},
		"insert a pipe":        {insertion, pipe, 1, wire.StatusInvalid},
		"insert too much":      {insertion, file(strings.Repeat("x", wire.MaxObject+1)), 1, wire.StatusInvalid},
		"insert nowhere":       {encode(wire.Request{Op: wire.OpInsert, Where: "kitchen"}), file(string(accumulate.Object)), 1, wire.StatusRefused},
		"unknown setting": {encode(wire.Request{Op: wire.OpInsert, Settings: []wire.Setting{{Kind: 4, Name: "capacity"}}}),
			file(string(accumulate.Object)), 1, wire.StatusInvalid},
		"trust": {encode(wire.Request{Op: wire.OpInsert, Settings: []wire.Setting{{Kind: wire.SetTrusted}}}),
			file(string(accumulate.Object)), 1, wire.StatusRefused},
		"remove what is not":   {encode(wire.Request{Op: wire.OpRemove, Handle: 99}), nil, 0, wire.StatusNotFound},
		"stats of what is not": {encode(wire.Request{Op: wire.OpStats, Handle: 99}), nil, 0, wire.StatusNotFound},
		"state of what is not": {encode(wire.Request{Op: wire.OpState, Handle: 99, Name: "table"}), nil, 0, wire.StatusNotFound},
		"state without a map":  {encode(wire.Request{Op: wire.OpState, Handle: good.Handle, Name: "chairs"}), nil, 0, wire.StatusNotFound},
		"no region":            {encode(wire.Request{Op: wire.OpRegion, Name: "r"}), nil, 0, wire.StatusNotFound},
		"region without name":  {encode(wire.Request{Op: wire.OpRegion, Value: 1}), nil, 0, wire.StatusNoRoom},
		"huge region":          {encode(wire.Request{Op: wire.OpRegion, Name: "r", Value: math.MaxUint64}), nil, 0, wire.StatusNoRoom},
		"files with a hello":   {encode(wire.Request{Op: wire.OpHello, Value: wire.Version}), file("x"), 3, wire.StatusOK},
		"files for nothing":    {encode(wire.Request{Op: wire.OpStats, Handle: good.Handle}), file("x"), 3, wire.StatusOK},
	} {
		t.Run(name, func(t *testing.T) {
			before := check.Descriptors(t)
			var control []byte
			if c.file != nil {
				f := c.file()
				defer f.Close()
				before++
				if name == "insert a pipe" {
					before++
				}
				control = unix.UnixRights(slices.Repeat([]int{int(f.Fd())}, c.files)...)
			}
			if _, _, err := a.socket.WriteMsgUnix(c.bytes, control, nil); err != nil {
				t.Fatal(err)
			}
			a.t = t
			reply, files := a.answer()
			rights.Close(files)
			if reply.Status != c.want || (reply.Text == "") != (c.want == wire.StatusOK) {
				t.Errorf("reply %+v, want status %d", reply, c.want)
			}
			check.Await(t, "end of the files that came", func() bool { return check.Descriptors(t) <= before })
			if reply, files := a.ask(wire.Request{Op: wire.OpStats, Call: 77, Handle: good.Handle}, nil); reply.Call != 77 || reply.Status != wire.StatusOK {
				rights.Close(files)
				t.Errorf("the next request: %+v", reply)
			}
		})
	}
	a.t = t
	pass(t, a, a, 0, 10)
	j.noFault()
}

// A node that sends nonsense without end does not fill the log of another.
func TestNonsenseWithoutEnd(t *testing.T) {
	var lines atomic.Int32
	e := NewEngine(Config{Log: func(string, ...any) { lines.Add(1) }})
	for range 1000 {
		e.Frame(1, []byte("nonsense"))
	}
	if n := lines.Load(); n == 0 || n > 100 {
		t.Errorf("%d lines for 1000 frames", n)
	}
}

// Malformed frames from other nodes change nothing.
func TestHostileFrames(t *testing.T) {
	const job, node = 7, 1
	secret := Key([]byte("12345678"))
	message := func(key uint64, m frame.Message) []byte {
		return frame.AppendMessage(frame.New(frame.Messages, job, key, 0), &m)
	}
	for name, c := range map[string]struct {
		from  id.Node
		bytes []byte
	}{
		"garbage":              {node, []byte("garbage, no frame")},
		"nothing":              {node, nil},
		"unknown job":          {node, frame.New(frame.Released, 99, secret, 5)},
		"wrong key":            {node, frame.New(frame.Arrived, job, secret+1, 1)},
		"messages, wrong key":  {node, message(secret+1, frame.Message{Source: 1, Target: 0})},
		"no member":            {9, frame.New(frame.Arrived, job, secret, 1)},
		"from this node":       {0, message(secret, frame.Message{Source: 0, Target: 0})},
		"another's rank":       {node, message(secret, frame.Message{Source: 2, Target: 0})},
		"a rank of ours":       {node, message(secret, frame.Message{Source: 0, Target: 0})},
		"no rank":              {node, message(secret, frame.Message{Source: math.MaxUint32, Target: 0})},
		"for another's rank":   {node, message(secret, frame.Message{Source: 1, Target: 1})},
		"for no rank":          {node, message(secret, frame.Message{Source: 1, Target: math.MaxUint32})},
		"window of no rank":    {node, frame.AppendCredit(frame.New(frame.Credits, job, secret), frame.Credit{Rank: math.MaxUint32, Taken: 1 << 40})},
		"window of another's":  {node, frame.AppendCredit(frame.New(frame.Credits, job, secret), frame.Credit{Rank: 2})},
		"window never used":    {node, frame.AppendCredit(frame.New(frame.Credits, job, secret), frame.Credit{Rank: 1, Taken: 1 << 40})},
		"forwards never used":  {node, frame.AppendCredit(frame.New(frame.Credits, job, secret), frame.Credit{Rank: 1, Hops: 2, Taken: 1 << 40})},
		"forward of no rank":   {node, message(secret, frame.Message{Source: math.MaxUint32, Target: 0, Hops: 1})},
		"forward for no rank":  {node, message(secret, frame.Message{Source: 1, Target: math.MaxUint32, Hops: 1})},
		"release from a child": {node, frame.New(frame.Released, job, secret, 1)},
		"end of another's":     {node, appendRank(frame.New(frame.Ended, job, secret), 2)},
		"end of ours":          {node, appendRank(frame.New(frame.Ended, job, secret), 0)},
		"end of no rank":       {node, appendRank(frame.New(frame.Ended, job, secret), math.MaxUint32)},
	} {
		t.Run(name, func(t *testing.T) {
			j := open(t, 3, 1)
			a, b, third := j.join(0), j.join(1), j.join(2)
			j.nodes[0].engine.Frame(c.from, c.bytes)
			if r, ok := a.next(0); ok {
				t.Errorf("a message came: %+v", r)
			}
			j.nodes[0].job.mu.Lock()
			if n := len(j.nodes[0].job.barrier.Ended()); n > 0 {
				t.Errorf("%d ranks have ended", n)
			}
			j.nodes[0].job.mu.Unlock()
			for channel := range flow.ChannelOf(3, 0) {
				if s := j.nodes[0].job.stream(channel, 0); s.Granted > 0 {
					t.Errorf("%d bytes are granted in channel %d", s.Granted, channel)
				}
			}
			if a.area.Released().Load() != 0 {
				t.Error("the rank was let out of a barrier")
			}
			done := make(chan bool, 2)
			go func() { done <- b.barrier(20 * time.Second) }()
			go func() { done <- third.barrier(20 * time.Second) }()
			time.Sleep(2 * time.Millisecond)
			if len(done) > 0 {
				t.Error("a barrier was completed without rank 0")
			}
			if !a.barrier(20*time.Second) || !<-done || !<-done {
				t.Error("a rank is stuck in the barrier")
			}
			pass(t, a, b, 0, 10)
			j.noFault()
		})
	}
}

func appendRank(b []byte, rank uint32) []byte {
	return append(binary.LittleEndian.AppendUint64(b, uint64(rank)), make([]byte, 16)...)
}

// The node survives all frames from another node. Half of them carry the job's number and key.
func FuzzFrame(f *testing.F) {
	for _, kind := range []frame.Kind{frame.Arrived, frame.Released, frame.Acknowledged} {
		f.Add(frame.New(kind, 7, 0, 1))
	}
	f.Add(frame.New(frame.Joined, 7, 0))
	f.Add(frame.New(frame.Ended, 7, 0, 1, 1, 1))
	f.Add(frame.AppendMessage(frame.New(frame.Messages, 7, 0, 0), &frame.Message{Source: 1, Target: 0, Payload: []byte("payload")}))
	f.Add(frame.AppendCredit(frame.New(frame.Credits, 7, 0), frame.Credit{Rank: 1, Taken: 1}))
	j := open(f, 3, 1)
	secret := Key(j.config.Secret)
	f.Fuzz(func(t *testing.T, b []byte) {
		e := j.nodes[0].engine
		e.Frame(1, b)
		if len(b) >= frame.HeaderSize {
			b = slices.Clone(b)
			binary.LittleEndian.PutUint32(b[4:], 7)
			binary.LittleEndian.PutUint64(b[8:], secret)
			e.Frame(1, b)
		}
	})
}

// A job may end with everything in flight.
func TestCloseMeanwhile(t *testing.T) {
	for round := range 10 {
		t.Run(fmt.Sprint("after ", round, " ms"), func(t *testing.T) { closeMeanwhile(t, round) })
	}
}

func closeMeanwhile(t *testing.T, round int) {
	j := open(t, 2, 2)
	var apps []*app
	for rank := range 4 {
		apps = append(apps, j.join(rank))
	}
	if reply := apps[0].insert(extensiontest.Object(t, extensiontest.Answer("deliver", "0"))); reply.Status != wire.StatusOK {
		t.Errorf("insert: %+v", reply)
	}
	stop := make(chan struct{})
	var all sync.WaitGroup
	forever := func(f func(i int)) {
		all.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				case <-time.After(10 * time.Microsecond):
					f(i)
				}
			}
		})
	}
	for rank, a := range apps {
		forever(func(i int) {
			a.post((rank+i)%4, 1, uint64(i), make([]byte, i%wire.MaxPayload))
			a.next(0)
		})
	}
	n, secret := j.nodes[0], Key(j.config.Secret)
	forever(func(i int) {
		n.engine.Frame(1, frame.New(frame.Arrived, 7, secret, 0))
		n.engine.Frame(1, frame.AppendMessage(frame.New(frame.Messages, 7, secret, uint64(i)), &frame.Message{Source: 2, Target: 0}))
		n.engine.Frame(1, frame.New(frame.Joined, 7, secret))
	})
	forever(func(int) { n.engine.Broken(1) })
	forever(func(int) { n.manager.List() })
	if round%2 == 0 {
		forever(func(i int) { n.job.Ended(id.Rank(i)) })
	}
	time.Sleep(time.Duration(round) * time.Millisecond)
	n.job.Close()
	if err := n.job.config.Set.Close(); err != nil {
		t.Error(err)
	}
	close(stop)
	all.Wait()
}
