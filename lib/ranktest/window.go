package ranktest

import (
	"encoding/binary"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"margay/internal/rights"
	"margay/kernel/abi/wire"
)

// regions is the regions of the nodes of a job.
type regions struct {
	t      *testing.T
	mu     sync.Mutex
	files  map[string]*os.File
	memory map[string][]byte
}

// answer answers the requests of a rank for regions, doorbells and channels until the rank has
// ended.
func (j *job) answer(k *Kernel, node uint32, rank int) {
	buf := make([]byte, wire.MaxRequest+1)
	for {
		n, err := k.socket.Read(buf)
		if err != nil || n == 0 {
			return
		}
		q, err := wire.DecodeRequest(buf[:n])
		reply, files := wire.Reply{Status: wire.StatusInvalid}, []*os.File(nil)
		switch {
		case err == nil && q.Op == wire.OpRegion:
			reply, files = j.regions.region(fmt.Sprint(node, " ", q.Name), int(q.Value))
		case err == nil && q.Op == wire.OpDoorbell:
			reply, files = wire.Reply{}, []*os.File{k.bells[q.Value]}
		case err == nil && q.Op == wire.OpChannel:
			reply, files = j.direct.Load().fetch(rank, q.Value) // which is there before the rank knows of it
		}
		reply.Call = q.Call
		// It fails when the rank has ended.
		_, _, _ = k.socket.WriteMsgUnix(reply.Encode(), rights.Encode(files...), nil)
	}
}

func (r *regions) region(name string, size int) (wire.Reply, []*os.File) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.files[name] == nil {
		if size == 0 {
			return wire.Reply{Status: wire.StatusNotFound, Text: "region not found"}, nil
		}
		fd, err := unix.MemfdCreate("region", unix.MFD_CLOEXEC)
		if err != nil {
			return wire.Reply{Status: wire.StatusFailed, Text: err.Error()}, nil
		}
		f := os.NewFile(uintptr(fd), "region")
		memory := []byte(nil)
		if err = f.Truncate(int64(size)); err == nil {
			memory, err = unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		}
		if err != nil {
			return wire.Reply{Status: wire.StatusFailed, Text: err.Error()}, nil
		}
		r.files[name], r.memory[name] = f, memory
	}
	return wire.Reply{Values: [8]uint64{uint64(len(r.memory[name]))}}, []*os.File{r.files[name]}
}

func (r *regions) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name := range maps.Keys(r.files) {
		r.files[name].Close()
		_ = unix.Munmap(r.memory[name])
	}
}

// serve carries out a request about a window, as a node kernel does, and returns the answer.
func (r *regions) serve(request wire.Record, target int, node uint32) wire.Record {
	r.t.Helper()
	q, err := wire.ParseRemote(request.Args, len(request.Payload))
	if err != nil {
		r.t.Fatal(err)
	}
	r.mu.Lock()
	memory := r.memory[fmt.Sprint(node, " ", wire.WindowName(int(q.Window), target))]
	r.mu.Unlock()
	answer := wire.Remote{Token: q.Token, Kind: wire.RemoteReply}
	var data []byte
	switch {
	case memory == nil:
		answer.Status = wire.RemoteNoWindow
	case !q.Within(len(memory)):
		answer.Status = wire.RemoteOutside
	case q.Kind == wire.RemotePut:
		copy(memory[q.Offset:], request.Payload)
	case q.Kind == wire.RemoteGet:
		data = slices.Clone(memory[q.Offset:][:q.Length])
	default:
		data = binary.LittleEndian.AppendUint64(nil, q.Kind.Access(wordOf(memory[q.Offset:]), request.Payload))
	}
	answer.Length = uint16(len(data))
	return wire.Record{Handler: wire.HandlerRemote, Args: answer.Args(), Payload: data}
}

// Windows: ranks that run the programs in turn use each other's windows. Each rank compares what it
// reads with what it has written. The program's mode is
//
//	windows SEED N    makes N random accesses to its own part of each rank's window, counts in a word of rank 0 together with
//	                  all ranks, passes data with events around a ring, makes an access to no window and one outside a window,
//	                  which must fail, at the latest in a barrier, does the same with requests, many of which are outstanding at a time, and prints "whole";
//	                  then it finalizes
func Windows(t *testing.T, seed uint64, programs ...Program) {
	for _, size := range []int{1, 2, 4} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			whole(startJob(t, size, programs, "windows", fmt.Sprint(seed), "200"))
		})
	}
	t.Run("by datagrams", func(t *testing.T) {
		j := startJob(t, 4, programs, "windows", fmt.Sprint(seed), "200")
		byDatagrams(j, seed)
		if whole(j); j.direct.Load().served.Load() == 0 {
			t.Error("no datagram has come")
		}
	})
}

// whole finishes the job of mode windows.
func whole(j *job) {
	j.t.Helper()
	for rank, output := range j.finish() {
		if output != "whole" {
			j.t.Errorf("rank %d says %q", rank, output)
		}
	}
}

// pending: a request without an answer stays outstanding after a time-out, requests are bounded,
// and the late answer to one that was abandoned changes no memory.
func pending(t *testing.T, program Program) {
	k := Start(t, program, "pending")
	k.Greet()
	k.Await("abandoned request", func() bool { return strings.Contains(k.output.String(), "abandoned\n") })
	requests := 0
	k.Await("end of the requests", func() bool {
		for r, ok := k.Next(); ok; r, ok = k.Next() {
			q, err := wire.ParseRemote(r.Args, len(r.Payload))
			if err != nil || r.Peer != 0 {
				t.Fatalf("the rank sends %+v: %v", r, err)
			}
			answer := wire.Remote{Token: q.Token, Kind: wire.RemoteReply}
			var data []byte
			if q.Kind == wire.RemoteGet {
				data = slices.Repeat([]byte{0xff}, int(q.Length))
				answer.Length = q.Length
			}
			k.Push(wire.Record{Handler: wire.HandlerRemote, Peer: apart.Rank, Node: apart.Node, Args: answer.Args(), Payload: data})
			requests++
		}
		return k.area.Entered().Load() == 1
	})
	k.Barrier(1)
	if out, _ := k.Ended(0); !strings.Contains(out, "256 requests are outstanding: test or wait for one first\nabandoned") || requests != 257 {
		t.Errorf("it makes %d requests and says %s", requests, out)
	}
}

// refused: a barrier that is complete before the answer to a put has come waits for that, and
// returns the refusal, once.
func refused(t *testing.T, program Program) {
	k := Start(t, program, "refused")
	k.Greet()
	for n := uint64(1); n <= 3; n++ {
		k.Await("barrier", func() bool { return k.area.Entered().Load() == n && k.Waiting() })
		r, ok := k.Next()
		k.area.ReceiveWaiting().Store(0)
		k.area.Released().Store(n)
		k.ring()
		if n == 2 {
			continue // without a put
		}
		q, err := wire.ParseRemote(r.Args, len(r.Payload))
		if !ok || err != nil || q.Kind != wire.RemotePut {
			t.Fatalf("before barrier %d, the rank sends %+v: %v", n, r, err)
		}
		k.Await("rank that waits for the answer", k.Waiting)
		answer := wire.Remote{Token: q.Token, Kind: wire.RemoteReply, Status: wire.RemoteNoWindow}
		k.Push(wire.Record{Handler: wire.HandlerRemote, Peer: apart.Rank, Node: apart.Node, Args: answer.Args()})
	}
	output, _ := k.Ended(0)
	lines := strings.Split(strings.ReplaceAll(output, "margay: ", ""), "\n")
	for _, line := range lines[:len(lines)-1] {
		if !strings.HasPrefix(line, "window 9 of rank 0 at 0: ") || !strings.HasSuffix(line, "there is no such window") {
			t.Errorf("it says %q", line)
		}
	}
	if len(lines) != 3 || lines[2] != "the job is finalized" {
		t.Errorf("it says %q", lines)
	}
}
