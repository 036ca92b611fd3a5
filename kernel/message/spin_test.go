package message

import (
	"encoding/binary"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"margay/internal/check"
	"margay/kernel/abi/id"
	"margay/kernel/abi/wire"
	"margay/kernel/hardware"
)

// cpu returns the CPU that this goroutine runs on now.
func cpu() id.CPU {
	var n uint32
	unix.RawSyscall(unix.SYS_GETCPU, uintptr(unsafe.Pointer(&n)), 0, 0)
	return id.CPU(n)
}

// lastCPU returns a CPU that this process may use.
func lastCPU(t *testing.T) id.CPU {
	t.Helper()
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		t.Fatal(err)
	}
	last := id.CPU(0)
	for i := range 1024 {
		if set.IsSet(i) {
			last = id.CPU(i)
		}
	}
	return last
}

// exchange sends n messages from every rank to all ranks and checks that all arrive, in order.
func exchange(apps []*app, n int) {
	var all sync.WaitGroup
	for _, a := range apps {
		all.Go(func() {
			sent, next := 0, make([]uint64, len(apps))
			for got := 0; got < n*len(apps); {
				if sent < n*len(apps) && a.post(sent%len(apps), 1, uint64(sent/len(apps)), []byte("payload")) {
					sent++
				}
				wait := time.Duration(0)
				if sent == n*len(apps) {
					wait = 20 * time.Second
				}
				r, ok := a.next(wait)
				if !ok {
					if wait > 0 {
						a.t.Errorf("%d of %d messages came", got, n*len(apps))
						return
					}
					continue
				}
				if r.Args[0] != next[r.Peer] {
					a.t.Errorf("message %d of rank %d came, %d was to come", r.Args[0], r.Peer, next[r.Peer])
				}
				next[r.Peer]++
				got++
			}
		})
	}
	all.Wait()
}

// While there is a spinner, its thread handles all messages, on its CPU, and no rank needs to ring.
func TestSpinner(t *testing.T) {
	want := lastCPU(t)
	var spinning atomic.Bool
	var here, elsewhere atomic.Int64
	j := openWith(t, 2, 2, JobConfig{Job: 7, Secret: []byte("12345678"), InitTimeout: time.Minute, Arrived: func(id.Rank, uint32) {
		if !spinning.Load() {
			return
		}
		if cpu() == want {
			here.Add(1)
		} else {
			elsewhere.Add(1)
		}
	}})
	var apps []*app
	for rank := range 4 {
		apps = append(apps, j.join(rank))
	}
	exchange(apps, 100)
	for _, n := range j.nodes {
		if err := n.engine.Spin(want); err != nil {
			t.Fatal(err)
		}
	}
	for _, a := range apps {
		check.Await(t, "attention", func() bool { return a.area.SendWaiting().Load() == 0 })
	}
	spinning.Store(true)
	exchange(apps, 500)
	spinning.Store(false)
	if here.Load() != 4*4*500 || elsewhere.Load() != 0 {
		t.Errorf("%d messages were handled on CPU %d, %d elsewhere", here.Load(), want, elsewhere.Load())
	}
	for _, a := range apps {
		if a.area.SendWaiting().Load() != 0 {
			t.Error("a rank is to ring, although somebody looks")
		}
	}
	for _, n := range j.nodes {
		n.engine.Rest()
	}
	exchange(apps, 100)
	j.noFault()
}

// Spinners start and stop under full load, and no message is lost, duplicated or late. The last
// messages of ranks are sent.
func TestSpinnerComesAndGoes(t *testing.T) {
	cpu := lastCPU(t)
	j := open(t, 3, 2)
	var apps []*app
	for rank := range 6 {
		apps = append(apps, j.join(rank))
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for i := 0; ; i++ {
			select {
			case <-stop:
				for _, n := range j.nodes {
					n.engine.Rest()
				}
				return
			case <-time.After(2 * time.Millisecond):
			}
			e := j.nodes[i%3].engine
			if i/3%2 == 0 {
				if err := e.Spin(cpu); err != nil {
					t.Error(err)
				}
			} else {
				e.Rest()
			}
		}
	}()
	exchange(apps, 2000)
	close(stop)
	<-stopped
	if err := j.nodes[0].engine.Spin(cpu); err != nil {
		t.Fatal(err)
	}
	for i := range 50 {
		if !apps[0].post(5, 1, uint64(i), nil) {
			t.Fatal("no room")
		}
	}
	j.nodes[0].job.Ended(0)
	for i := range 50 {
		if r, ok := apps[5].next(time.Minute); !ok || r.Args[0] != uint64(i) {
			t.Errorf("message %d is %+v, %v", i, r, ok)
		}
	}
	j.nodes[0].engine.Rest()
	j.noFault()
}

// A CPU that does not exist is refused, and everything continues as before.
func TestSpinNowhere(t *testing.T) {
	j := open(t, 1, 2)
	a, b := j.join(0), j.join(1)
	if err := j.nodes[0].engine.Spin(1000); err == nil {
		t.Error("it spins on CPU 1000")
	}
	j.nodes[0].engine.Rest()
	exchange([]*app{a, b}, 100)
}

// A spinner is never the first thread, from which others learn the CPUs of the process.
func TestSpinnerIsAnotherThread(t *testing.T) {
	allowed, err := hardware.Allowed(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	j := open(t, 1, 2)
	for range 500 {
		if err := j.nodes[0].engine.Spin(allowed[0]); err != nil {
			t.Fatal(err)
		}
		now, err := hardware.Allowed(os.Getpid())
		if err != nil || !slices.Equal(now, allowed) {
			t.Fatalf("the process may use the CPUs %v, not %v: %v", now, allowed, err)
		}
		j.nodes[0].engine.Rest()
	}
}

// A rank that sends without end, and makes room for what it sends itself at once, keeps the spinner
// neither from the messages of others nor from its end.
func TestSpinnerTakesTurns(t *testing.T) {
	var flood atomic.Pointer[func()] // what the rank does when a message comes
	j := openWith(t, 1, 2, JobConfig{Job: 7, Secret: []byte("12345678"), InitTimeout: time.Minute, Arrived: func(id.Rank, uint32) {
		if f := flood.Load(); f != nil {
			(*f)()
		}
	}})
	hostile, other := j.join(0), j.join(1)
	word := func(at int) *atomic.Uint64 { return (*atomic.Uint64)(unsafe.Pointer(&hostile.memory[at])) }
	for at := 0; at < wire.RingSize; at += 64 { // messages to itself, which the positions make new ones
		hostile.record(at, 64, 1)
		binary.LittleEndian.PutUint32(hostile.memory[len(hostile.memory)-3*wire.RingSize+at+16:], 64-wire.RecordHeader)
	}
	more := func() {
		word(sendControl + tail).Store(word(sendControl+head).Load() + wire.RingSize)
		word(receiveControl + head).Store(word(receiveControl + tail).Load())
	}
	flood.Store(&more)
	defer flood.Store(nil)
	if err := j.nodes[0].engine.Spin(lastCPU(t)); err != nil {
		t.Fatal(err)
	}
	for _, a := range []*app{hostile, other} {
		check.Await(t, "attention", func() bool { return a.area.SendWaiting().Load() == 0 })
	}
	more()
	check.Await(t, "flood", func() bool { return word(sendControl+head).Load() > 2*wire.RingSize })
	if !other.post(1, 1, 5, nil) {
		t.Fatal("no room")
	}
	if r, ok := other.next(check.Patience); !ok || r.Args[0] != 5 {
		t.Fatalf("the message comes as %+v, %v", r, ok)
	}
	j.nodes[0].engine.Rest()
	j.noFault()
}
