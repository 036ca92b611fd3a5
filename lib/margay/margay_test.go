package margay_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"margay/internal/check"
	"margay/kernel/abi/wire"
	"margay/lib/margay"
	"margay/lib/ranktest"
)

// The test binary is also the rank of the contract suite.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == "rank" {
		if err := rank(os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func rank(mode []string) error {
	job, err := margay.Init()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	switch mode[0] {
	case "who":
		fmt.Print(job.Number(), " ", job.Rank(), " ", job.Size(), " ", job.Node(), " ", job.Nodes(), " ", job.LocalRank(), " ", job.LocalSize())
		for rank := range job.Size() {
			fmt.Print(" ", job.NodeOf(rank))
		}
	case "nowhere":
		fmt.Println(job.Send(ctx, 3, 0, [2]uint64{}, nil))
		fmt.Println(job.Send(ctx, 0, 256, [2]uint64{}, nil))
		fmt.Println(job.Send(ctx, 0, 0, [2]uint64{}, make([]byte, margay.MaxMessage+1)))
		_, err := job.Post(0, 0, [2]uint64{}, make([]byte, margay.MaxPayload+1))
		fmt.Println(err)
		_, err = job.Window(1, 0)
		fmt.Println(err)
		ctx, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		defer cancel()
		if job.Barrier(ctx) != nil {
			fmt.Println(job.Barrier(context.Background()))
		}
	case "echo":
		return echo(ctx, job)
	case "flood":
		n, err := strconv.Atoi(mode[1])
		if err != nil {
			return err
		}
		payload := make([]byte, margay.MaxPayload)
		for i := range n {
			for j := range payload {
				payload[j] = byte(i + j)
			}
			if err := job.Send(ctx, 0, 7, [2]uint64{uint64(i), ^uint64(i)}, payload[:i%(margay.MaxPayload+1)]); err != nil {
				return err
			}
		}
		return job.Finalize(ctx)
	case "await":
		return await(ctx, job, mode[1:])
	case "compute":
		n, err := strconv.Atoi(mode[1])
		if err != nil {
			return err
		}
		return compute(ctx, job, n)
	case "meet":
		return meet(ctx, job, mode[1:])
	case "served":
		return served(ctx, job, mode[1])
	case "services":
		return services(job)
	case "list":
		return list(job, mode[1])
	case "finalized":
		return finalized(ctx, job)
	case "calls":
		return calls(ctx, job)
	case "overdue":
		ms, err := strconv.Atoi(mode[1])
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, time.Duration(ms)*time.Millisecond)
		defer cancel()
		fmt.Println(margay.Broadcast(ctx, job, 0, make([]byte, 8)))
	case "split":
		_, err := margay.Split(ctx, job, 0, 0)
		fmt.Println(err)
	case "tests":
		return tests(ctx, job)
	case "windows":
		return windows(ctx, job, mode[1], mode[2])
	case "commit":
		return commits(ctx, job, mode[1])
	case "giveup":
		return giveUp(ctx, job)
	case "unharmed":
		return unharmed(context.Background(), job, mode[1], mode[2])
	case "storm":
		return stormyWeather(context.Background(), job, mode[1], mode[2])
	case "visited":
		return visited(context.Background(), job)
	case "endless":
		return endless(context.Background(), job, mode[1])
	case "pending":
		return pending(ctx, job)
	case "refused":
		return refused(ctx, job)
	case "collect":
		return collect(ctx, job, mode[1], mode[2])
	}
	return nil
}

func echo(ctx context.Context, job *margay.Job) error {
	var came []margay.Message
	quit := false
	job.Handle(1, func(m margay.Message) {
		m.Payload = slices.Clone(m.Payload)
		came = append(came, m)
	})
	job.Handle(3, func(margay.Message) { quit = true })
	for !quit {
		if _, err := job.Wait(ctx); err != nil {
			return err
		}
		for len(came) > 0 {
			m := came[0]
			came = came[1:]
			if err := job.Send(ctx, m.Source, 2, [2]uint64{m.Args[0], m.Args[1] + 1}, m.Payload); err != nil {
				return err
			}
		}
	}
	if err := job.Barrier(ctx); err != nil {
		return err
	}
	return job.Finalize(ctx)
}

func served(ctx context.Context, job *margay.Job, timeout string) error {
	ms, err := strconv.Atoi(timeout)
	if err != nil {
		return err
	}
	job.Handle(6, func(margay.Message) {})
	if _, err := job.Wait(ctx); err != nil {
		return err
	}
	window, err := job.Window(0, 4096)
	if err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, time.Duration(ms)*time.Millisecond)
	defer cancel()
	n, _ := job.Wait(limited)
	fmt.Print(n, " ", window[0])
	return nil
}

func meet(ctx context.Context, job *margay.Job, mode []string) error {
	n, err := strconv.Atoi(mode[0])
	if err != nil {
		return err
	}
	handled := 0
	job.Handle(6, func(margay.Message) { handled++ })
	for i := 1; i <= n; i++ {
		if err := job.Send(ctx, 0, 6, [2]uint64{uint64(i)}, nil); err != nil {
			return err
		}
		limited, cancel := ctx, context.CancelFunc(func() {})
		if i == n && len(mode) > 1 {
			ms, err := strconv.Atoi(mode[1])
			if err != nil {
				return err
			}
			limited, cancel = context.WithTimeout(ctx, time.Duration(ms)*time.Millisecond)
		}
		err := job.Barrier(limited)
		cancel()
		if err != nil {
			return err
		}
		if handled < i {
			return fmt.Errorf("after barrier %d, %d messages have been handled", i, handled)
		}
	}
	return job.Finalize(ctx)
}

type element struct {
	next  *element
	value uint64
}

func list(job *margay.Job, what string) error {
	region, err := job.FixedRegion("list", 4096)
	if err != nil {
		return err
	}
	again, err := job.FixedRegion("list", 0)
	if err != nil || &again.Bytes[0] != &region.Bytes[0] || len(again.Bytes) != 4096 {
		return fmt.Errorf("asked again, the region is another one: %w", err)
	}
	first := (**element)(unsafe.Pointer(&region.Bytes[0]))
	if elements := (*[10]element)(unsafe.Pointer(&region.Bytes[16])); what == "write" {
		for i := range elements {
			elements[i].value = uint64(i * i)
			if i > 0 {
				elements[i-1].next = &elements[i]
			}
		}
		*first = &elements[0]
	}
	sum := uint64(0)
	for e := *first; e != nil; e = e.next {
		sum += e.value
	}
	fmt.Println(unsafe.Pointer(first), sum)
	return nil
}

// await waits for n messages that may have come before.
func await(ctx context.Context, job *margay.Job, args []string) error {
	n, err := strconv.Atoi(args[0])
	barriers := 1
	if len(args) > 1 && err == nil {
		barriers, err = strconv.Atoi(args[1])
	}
	handled := 0
	job.Handle(5, func(margay.Message) { handled++ })
	for range barriers {
		if err == nil {
			err = job.Barrier(ctx)
		}
	}
	if err != nil {
		return err
	}
	job.Upcalls()
	if err := job.WaitFor(ctx, func() bool { return handled == n }); err != nil {
		return err
	}
	return job.Finalize(ctx)
}

// compute computes until n upcalls have been handled.
func compute(ctx context.Context, job *margay.Job, n int) error {
	var handled atomic.Int64
	var failed atomic.Pointer[error]
	job.Handle(4, func(m margay.Message) {
		if ok, err := job.Post(m.Source, 2, [2]uint64{m.Args[0], m.Args[1] + 1}, m.Payload); !ok {
			err = fmt.Errorf("upcall %d is not sent back: %w", m.Args[0], err)
			failed.Store(&err)
		}
		handled.Add(1)
	})
	job.Upcalls()
	for handled.Load() < int64(n) {
	}
	if err := failed.Load(); err != nil {
		return *err
	}
	return job.Finalize(ctx)
}

func services(job *margay.Job) error {
	region, err := job.Region("shared", 4096)
	if err != nil {
		return err
	}
	region.Bytes[0] = 'R'
	x, err := job.Insert(margay.ExtensionSpec{
		Name: "x", Slot: "message", Object: []byte("object"), Constants: map[string]uint64{"c": 5}, Entries: map[string]uint32{"m": 6},
	})
	if err != nil {
		return err
	}
	stats, err := x.Stats()
	if err != nil {
		return err
	}
	fmt.Println(stats.Runs, stats.Instructions, stats.Faults, stats.Time.Nanoseconds(), stats.LastFault)
	state, err := x.State("m")
	if err != nil {
		return err
	}
	state.Bytes[0] = 'S'
	fmt.Println(state.Entries, state.Stride)
	if err := x.Remove(); err != nil {
		return err
	}
	_, err = job.Insert(margay.ExtensionSpec{Object: []byte("object")})
	if !errors.Is(err, margay.ErrRefused) {
		return fmt.Errorf("a refusal is %w", err)
	}
	return err
}

func finalized(ctx context.Context, job *margay.Job) error {
	job.Handle(5, func(margay.Message) {
		fmt.Fprintln(os.Stderr, "a handler runs")
		os.Exit(1)
	})
	x, err := job.Insert(margay.ExtensionSpec{Object: []byte("object")})
	if err != nil {
		return err
	}
	job.Upcalls()
	if err := job.Finalize(ctx); err != nil {
		return err
	}
	fmt.Println("finalized")
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		return err
	}
	if n := job.Poll(); n != 0 {
		return fmt.Errorf("%d messages were handled", n)
	}
	for _, call := range []func() error{
		func() error { return job.Send(ctx, 0, 7, [2]uint64{}, nil) },
		func() error { _, err := job.Post(0, 7, [2]uint64{}, nil); return err },
		func() error { _, err := job.Wait(ctx); return err },
		func() error { return job.WaitFor(ctx, func() bool { return true }) },
		func() error { return job.Barrier(ctx) },
		func() error { return job.Finalize(ctx) },
		func() error { _, err := job.Region("shared", 4096); return err },
		func() error { _, err := job.FixedRegion("shared", 4096); return err },
		func() error { _, err := job.Insert(margay.ExtensionSpec{Object: []byte("object")}); return err },
		func() error { _, err := x.Stats(); return err },
		func() error { _, err := x.State("m"); return err },
		x.Remove,
		func() error { return margay.Broadcast(ctx, job, 0, make([]byte, 8)) },
	} {
		if err := call(); errors.Is(err, margay.ErrClosed) {
			fmt.Println(err)
		} else {
			fmt.Fprintln(os.Stderr, "not ErrClosed:", err)
		}
	}
	return nil
}

func TestContract(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ranktest.Suite(t, check.Seed(t), func(ctx context.Context, mode ...string) *exec.Cmd {
		return exec.CommandContext(ctx, exe, append([]string{"rank"}, mode...)...)
	})
}

func TestNoJob(t *testing.T) {
	for _, text := range []string{"", "x", "99999"} {
		t.Setenv(wire.EnvFD, text)
		if _, err := margay.Init(); !errors.Is(err, margay.ErrNoJob) {
			t.Errorf("with %q: %v", text, err)
		}
	}
}

// Init leaves alone a file of the program that has the number of the socket.
func TestFileOfProgram(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	t.Setenv(wire.EnvFD, strconv.Itoa(int(file.Fd())))
	if _, err := margay.Init(); !errors.Is(err, margay.ErrNoJob) {
		t.Error(err)
	}
	if _, err := file.WriteString("text"); err != nil {
		t.Error(err)
	}
}

// A refusal of the node kernel carries its kind, and a failed Init leaves nothing behind.
func TestInitFails(t *testing.T) {
	cases := []struct {
		name  string
		reply wire.Reply
		files int
		want  error
	}{
		{"version", wire.Reply{Status: wire.StatusVersion, Text: "another"}, 0, margay.ErrVersion},
		{"room", wire.Reply{Status: wire.StatusNoRoom, Text: "full"}, 0, margay.ErrNoRoom},
		{"four descriptors", wire.Reply{}, 4, nil},
		{"empty area", wire.Reply{}, 5, nil},
		{"six descriptors", wire.Reply{}, 6, nil},
	}
	for _, k := range cases {
		t.Run(k.name, func(t *testing.T) {
			before, goroutines := check.Descriptors(t), runtime.NumGoroutine()
			fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			t.Setenv(wire.EnvFD, strconv.Itoa(fds[0]))
			near := os.NewFile(uintptr(fds[1]), "near")
			conn, err := net.FileConn(near)
			near.Close()
			if err != nil {
				t.Fatal(err)
			}
			served := make(chan error, 1)
			go func() { served <- serve(conn.(*net.UnixConn), k.reply, k.files) }()
			if _, err := margay.Init(); err == nil || k.want != nil && !errors.Is(err, k.want) {
				t.Errorf("error %v", err)
			}
			if err := <-served; err != nil {
				t.Error(err)
			}
			conn.Close()
			for deadline := time.Now().Add(10 * time.Second); check.Descriptors(t) != before || runtime.NumGoroutine() > goroutines; time.Sleep(time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("%d descriptors, before there were %d", check.Descriptors(t), before)
				}
			}
		})
	}
}

// serve answers the first request that comes.
func serve(conn *net.UnixConn, reply wire.Reply, files int) error {
	buf := make([]byte, wire.MaxRequest)
	n, err := conn.Read(buf)
	if err != nil {
		return err
	}
	q, err := wire.DecodeRequest(buf[:n])
	if err != nil {
		return err
	}
	reply.Call = q.Call
	var fds []int
	for range files {
		fd, err := unix.MemfdCreate("x", unix.MFD_CLOEXEC)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		fds = append(fds, fd)
	}
	var rights []byte
	if files > 0 {
		rights = unix.UnixRights(fds...)
	}
	_, _, err = conn.WriteMsgUnix(reply.Encode(), rights, nil)
	return err
}
