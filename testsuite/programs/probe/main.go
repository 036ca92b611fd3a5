// Command probe is what end-to-end tests run on nodes. Its first argument says what it does.
package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"margay/lib/margay"
)

var commands = map[string]func(args []string) error{
	"hello":     hello,
	"exit":      exit,
	"share":     share,
	"count":     count,
	"late":      late,
	"write":     write,
	"wide":      wide,
	"spew":      spew,
	"long":      long,
	"stdin":     stdin,
	"signals":   signals,
	"sleep":     sleep,
	"read":      read,
	"fill":      fill,
	"eat":       eat,
	"fork":      fork,
	"kill":      killAll,
	"snoop":     snoop,
	"island":    island,
	"barrier":   barrier,
	"threads":   threads,
	"leave":     leave,
	"meet":      meet,
	"pingpong":  pingpong,
	"pmi":       speakPMI,
	"network":   listenOnNetwork,
	"insert":    insert,
	"extension": extension,
	"hog":       hog,
	"compose":   compose,
	"orphan":    orphan,
	"affinity":  affinity,
	"compute":   compute,
	"touch":     touch,
	"pointers":  pointers,
	"spread":    spread,
	"upcalls":   upcalls,
}

func main() {
	if len(os.Args) < 2 || commands[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "probe: no such command:", os.Args[1:])
		os.Exit(2)
	}
	var cancel context.CancelFunc
	ctx, cancel = context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	if err := commands[os.Args[1]](os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, "probe:", err)
		os.Exit(1)
	}
}

func rank() string { return os.Getenv("MARGAY_RANK") }

func number(args []string, at, otherwise int) int {
	if at >= len(args) {
		return otherwise
	}
	n, err := strconv.Atoi(args[at])
	if err != nil {
		panic(err)
	}
	return n
}

// hello [WORD...] prints what the process finds around it.
func hello(args []string) error {
	dir, err := os.Getwd()
	umask := unix.Umask(0)
	host, _ := os.Hostname()
	fmt.Printf("rank %s of %s on %s uid %d dir %s umask %03o env %s args %q\n", rank(), os.Getenv("MARGAY_SIZE"), host, os.Getuid(),
		dir, umask, os.Getenv("PROBE_ENV"), args)
	return err
}

// share WAIT_S TIME_S prints that it is there, waits, and computes for some time, all ranks in the
// same time. Then it prints the processor time that it had in it.
func share(args []string) error {
	ctx, job, err := join()
	if err != nil {
		return err
	}
	if err := job.Finalize(ctx); err != nil { // which waits for the others
		return err
	}
	fmt.Printf("waits %s\n", rank())
	start := time.Now().Add(time.Duration(number(args, 0, 1)) * time.Second)
	time.Sleep(time.Until(start))
	before, err := processorTime()
	if err != nil {
		return err
	}
	for time.Since(start) < time.Duration(number(args, 1, 1))*time.Second {
	}
	after, err := processorTime()
	fmt.Printf("rank %s had %d ms\n", rank(), (after - before).Milliseconds())
	return err
}

func processorTime() (time.Duration, error) {
	var ts unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &ts)
	return time.Duration(ts.Nano()), err
}

// exit CODE [RANK] ends with a status, in one rank or in all.
func exit(args []string) error {
	if len(args) > 1 && args[1] != rank() {
		time.Sleep(time.Hour)
	}
	os.Exit(number(args, 0, 0))
	return nil
}

// count N PAUSE_MS prints numbered lines to both streams. If N is 0, it does so until SIGUSR1, and
// then prints their number.
func count(args []string) error {
	enough := make(chan os.Signal, 1)
	signal.Notify(enough, unix.SIGUSR1)
	n, i := number(args, 0, 10), 0
	for ; i < n || n == 0 && len(enough) == 0; i++ {
		fmt.Printf("out %s %d\n", rank(), i)
		fmt.Fprintf(os.Stderr, "err %s %d\n", rank(), i)
		time.Sleep(time.Duration(number(args, 1, 0)) * time.Millisecond)
	}
	if n == 0 {
		fmt.Printf("rank %s printed %d lines\n", rank(), i)
	}
	return nil
}

// late lets rank 0 leave a child behind that writes after a second, while rank 1 runs, and then
// goes on for an hour.
func late(args []string) error {
	if len(args) > 0 {
		time.Sleep(time.Second)
		fmt.Printf("child of rank %s\n", rank())
		time.Sleep(time.Hour)
	}
	if rank() != "0" {
		time.Sleep(4 * time.Second)
		return nil
	}
	child := exec.Command("/proc/self/exe", "late", "child")
	child.Stdout, child.Stderr = os.Stdout, os.Stderr
	return child.Start()
}

// write FILE... writes to files.
func write(files []string) error {
	for _, name := range files {
		if err := os.WriteFile(name, []byte(rank()), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// wide N prints numbered lines of more than 40 bytes as fast as it can, each in one piece.
func wide(args []string) error {
	for i := range number(args, 0, 10) {
		if _, err := fmt.Printf("out %s %d %s\n", rank(), i, strings.Repeat(".", 30)); err != nil {
			return err
		}
	}
	return nil
}

// spew BYTES prints so many bytes, in numbered lines of 16. The last line may be shorter.
func spew(args []string) error {
	out := bufio.NewWriter(os.Stdout)
	for left, i := number(args, 0, 0), 0; left > 0; i++ {
		line := fmt.Sprintf("%015d\n", i)
		n := min(left, len(line))
		if _, err := out.WriteString(line[:n]); err != nil {
			return err
		}
		left -= n
	}
	return out.Flush()
}

// long BYTES prints two lines of so many digits, its rank's.
func long(args []string) error {
	line := strings.Repeat(rank(), number(args, 0, 0)) + "\n"
	for range 2 {
		if _, err := os.Stdout.WriteString(line); err != nil {
			return err
		}
	}
	return nil
}

// stdin counts the lines and bytes of standard input.
func stdin([]string) error {
	in := bufio.NewReader(os.Stdin)
	lines, bytes := 0, 0
	for {
		line, err := in.ReadString('\n')
		bytes += len(line)
		if err == io.EOF {
			fmt.Printf("rank %s read %d lines, %d bytes\n", rank(), lines, bytes)
			return nil
		}
		if err != nil {
			return err
		}
		lines++
	}
}

// signals prints the signals that come, until SIGTERM.
func signals([]string) error {
	c := make(chan os.Signal, 16)
	signal.Notify(c, unix.SIGINT, unix.SIGHUP, unix.SIGUSR1, unix.SIGUSR2, unix.SIGQUIT, unix.SIGTERM)
	fmt.Println("ready", rank())
	for s := range c {
		fmt.Println("rank", rank(), "got", unix.SignalName(s.(syscall.Signal)))
		if s == unix.SIGTERM {
			return nil
		}
	}
	return nil
}

// sleep [SECONDS] [stubborn] waits; stubborn, it ignores what asks it to end.
func sleep(args []string) error {
	if len(args) > 1 {
		signal.Ignore(unix.SIGTERM, unix.SIGINT, unix.SIGHUP)
	}
	fmt.Println("sleeping", rank())
	time.Sleep(time.Duration(number(args, 0, 3600)) * time.Second)
	return nil
}

// read FILE prints the size and the first line of a file.
func read(args []string) error {
	text, err := os.ReadFile(args[0])
	if err != nil {
		return err
	}
	first, _, _ := strings.Cut(string(text), "\n")
	fmt.Printf("rank %s: %d bytes, first line %q\n", rank(), len(text), first)
	return nil
}

// fill writes a file until it cannot any more, and says why.
func fill([]string) error {
	f, err := os.Create("/tmp/fill")
	if err != nil {
		return err
	}
	var total int
	for block := make([]byte, 1<<20); ; {
		n, err := f.Write(block)
		total += n
		if err != nil {
			fmt.Printf("rank %s wrote %d MiB: %v\n", rank(), total>>20, errors.Unwrap(err))
			return nil
		}
	}
}

// eat [RANK] takes memory without end, in one rank or in all.
func eat(args []string) error {
	if len(args) > 0 && args[0] != rank() {
		time.Sleep(time.Hour)
	}
	var all [][]byte
	for {
		block := make([]byte, 4<<20)
		for i := 0; i < len(block); i += 4096 {
			block[i] = 1
		}
		all = append(all, block)
		if len(all)%1000 == 0 {
			runtime.KeepAlive(all)
		}
	}
}

// fork starts processes without end, and says how far it got.
func fork([]string) error {
	haveThreads(8) // Go ends a program that needs another one and cannot have it
	n := 0
	for {
		cmd := exec.Command("/proc/self/exe", "sleep")
		if err := cmd.Start(); err != nil {
			fmt.Printf("rank %s started %d processes: %v\n", rank(), n, err)
			return nil
		}
		n++
	}
}

// haveThreads has this process have some idle threads.
func haveThreads(n int) {
	var made, done sync.WaitGroup
	made.Add(n)
	for range n {
		done.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			made.Done()
			made.Wait()
		})
	}
	done.Wait()
}

// orphan leaves a process behind that has left its session, and ends.
func orphan([]string) error {
	cmd := exec.Command("/proc/self/exe", "sleep", "3600", "orphan")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return cmd.Start()
}

// kill sends SIGKILL to everything that it can see.
func killAll([]string) error {
	unix.Kill(-1, unix.SIGKILL) // all but itself
	if err := unix.Kill(1, unix.SIGKILL); err != unix.EPERM {
		fmt.Printf("killing PID 1: %v\n", err)
	}
	fmt.Println("rank", rank(), "has killed what it could")
	return nil
}

// snoop tries what a job must not be able to do, and prints what it could do.
func snoop([]string) error {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return err
	}
	var pids []string
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err == nil {
			pids = append(pids, e.Name())
		}
	}
	fmt.Printf("sees %d processes\n", len(pids))
	try := func(what string, err error) {
		if err == nil {
			fmt.Println("CAN", what)
		}
	}
	try("signal PID 1", unix.Kill(1, 0))
	try("trace PID 1", unix.PtraceAttach(1))
	for _, path := range []string{"/margay/node.json", "/margay", "/run", "/sys/fs/cgroup", "/init", "/lib/modules", "/proc/1/root/", "/proc/1/environ", "/proc/1/fd"} {
		f, err := os.Open(path)
		if err == nil {
			if _, derr := f.Readdirnames(1); path[len(path)-1] != '/' && derr != nil && !strings.HasPrefix(path, "/proc") {
				err = derr
			}
			f.Close()
		}
		try("open "+path, err)
	}
	try("mount", unix.Mount("none", "/tmp", "tmpfs", 0, ""))
	try("make a device", unix.Mknod("/tmp/mem", unix.S_IFCHR|0o666, 1<<8|1))
	try("become root", syscall.Setuid(0))
	try("change the host name", unix.Sethostname([]byte("mine")))
	try("write sysctls", os.WriteFile("/proc/sys/kernel/panic", []byte("1"), 0))
	try("trigger sysrq", os.WriteFile("/proc/sysrq-trigger", []byte("h"), 0))
	try("load a module", unix.FinitModule(0, "", 0))
	try("switch off", unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART2))
	try("leave its cores", leaveCores())
	matches, _ := filepath.Glob("/proc/*/cmdline")
	for _, m := range matches {
		text, _ := os.ReadFile(m)
		if strings.Contains(string(text), "kernel") {
			fmt.Println("CAN see", string(text))
		}
	}
	return nil
}

// leaveCores moves this thread to core 0 and reports whether that was refused.
func leaveCores() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var set unix.CPUSet
	set.Set(0)
	return unix.SchedSetaffinity(0, &set)
}

// compute [SECONDS] computes for some time, in Go.
func compute(args []string) error {
	fmt.Println("computing")
	end := time.Now().Add(time.Duration(number(args, 0, 1)) * time.Second)
	sum := uint64(0)
	for i := uint64(0); time.Now().Before(end); {
		for range 1_000_000 {
			i++
			sum = sum*6364136223846793005 + i
		}
	}
	fmt.Println("computed", sum)
	return nil
}

// touch MIB [wait] touches so much memory, prints how much of the process's is in huge pages, and
// keeps it until its end.
func touch(args []string) error {
	memory, err := unix.Mmap(-1, 0, number(args, 0, 16)<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return err
	}
	for i := 0; i < len(memory); i += 4096 {
		memory[i] = 1
	}
	text, err := os.ReadFile("/proc/self/smaps_rollup")
	_, rest, _ := strings.Cut(string(text), "AnonHugePages:")
	huge, _, _ := strings.Cut(rest, "kB")
	fmt.Printf("rank %s has %s KiB in huge pages\n", rank(), strings.TrimSpace(huge))
	if len(args) > 1 {
		time.Sleep(time.Hour)
	}
	return err
}

// affinity prints the CPUs that the process may use.
func affinity([]string) error {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return err
	}
	var cpus []int
	for c := range 1024 {
		if set.IsSet(c) {
			cpus = append(cpus, c)
		}
	}
	fmt.Printf("rank %s may use %v\n", rank(), cpus)
	return nil
}

// island ADDRESS... tries to reach addresses, and prints those that answer.
func island(args []string) error {
	interfaces, err := net.Interfaces()
	if err != nil {
		return err
	}
	for _, i := range interfaces {
		if i.Name != "lo" {
			fmt.Println("CAN use interface", i.Name)
		}
	}
	for _, address := range args {
		if c, err := net.DialTimeout("tcp", address, time.Second); err == nil {
			fmt.Println("CAN reach", address)
			c.Close()
		}
	}
	return nil
}

// ctx bounds everything that this program waits for.
var ctx = context.Background()

func join() (context.Context, *margay.Job, error) {
	job, err := margay.Init()
	return ctx, job, err
}

// barrier [RANK] enters barriers; the named rank never joins.
func barrier(args []string) error {
	if len(args) > 0 && args[0] == rank() {
		time.Sleep(time.Hour)
	}
	ctx, job, err := join()
	if err != nil {
		return err
	}
	for range 10 {
		if err := job.Barrier(ctx); err != nil {
			return err
		}
	}
	fmt.Println("rank", job.Rank(), "passed 10 barriers")
	return job.Finalize(ctx)
}

// meet N PAUSE passes N barriers and pauses so many milliseconds before each. Before a barrier each
// rank sends a message to the next one, which must have handled it after the barrier.
func meet(args []string) error {
	ctx, job, err := join()
	if err != nil {
		return err
	}
	handled := 0
	job.Handle(1, func(margay.Message) { handled++ })
	n, pause := number(args, 0, 100), time.Duration(number(args, 1, 0))*time.Millisecond
	for i := range n {
		if i == min(n, 50)-1 && job.Rank() == 0 {
			fmt.Println("meeting") // all ranks have their channels
		}
		time.Sleep(pause)
		if err := job.Send(ctx, (job.Rank()+1)%job.Size(), 1, [2]uint64{}, nil); err != nil {
			return err
		}
		if err := job.Barrier(ctx); err != nil {
			return err
		}
		if handled <= i {
			return fmt.Errorf("after barrier %d, %d messages have been handled", i+1, handled)
		}
	}
	fmt.Println("rank", job.Rank(), "has met", n, "times")
	return job.Finalize(ctx)
}

// threads N has N threads at once in each rank.
func threads(args []string) error {
	ctx, job, err := join()
	if err != nil {
		return err
	}
	n := number(args, 0, 10)
	var made sync.WaitGroup
	made.Add(n)
	end := make(chan struct{})
	for range n {
		go func() {
			runtime.LockOSThread()
			made.Done()
			<-end
		}()
	}
	made.Wait()
	defer close(end)
	if err := job.Barrier(ctx); err != nil {
		return err
	}
	fmt.Println("rank", job.Rank(), "has its threads, as user", os.Getuid())
	return job.Finalize(ctx)
}

// leave RANK has one rank end while the others wait in a barrier.
func leave(args []string) error {
	ctx, job, err := join()
	if err != nil {
		return err
	}
	if err := job.Barrier(ctx); err != nil {
		return err
	}
	if args[0] == rank() {
		return nil
	}
	return job.Barrier(ctx)
}

// pingpong N PAUSE_MS [BYTES] lets rank 0 exchange messages with every other rank, and checks their
// order. Each tenth message from rank 0 has so many bytes.
func pingpong(args []string) error {
	ctx, job, err := join()
	if err != nil {
		return err
	}
	const ping, pong = 1, 2
	got := 0
	next := make([]uint64, job.Size())
	size := number(args, 2, 0)
	payload := func(i uint64) []byte {
		b := fmt.Append(nil, "number ", i)
		for n := uint64(0); i%10 == 9 && len(b) < size; n++ {
			b = append(b, byte(i+n+n>>8))
		}
		return b
	}
	job.Handle(ping, func(m margay.Message) {
		if !bytes.Equal(m.Payload, payload(m.Args[0])) {
			panic(fmt.Sprintf("message %d has %d bytes, others than were sent", m.Args[0], len(m.Payload)))
		}
		if ok, err := job.Post(m.Source, pong, m.Args, fmt.Append(nil, "number ", m.Args[0])); !ok || err != nil {
			panic(fmt.Sprint("no room for an answer: ", err))
		}
	})
	job.Handle(pong, func(m margay.Message) {
		if m.Args[0] != next[m.Source] || string(m.Payload) != fmt.Sprint("number ", m.Args[0]) {
			panic(fmt.Sprintf("message %d %q from rank %d, expected %d", m.Args[0], m.Payload, m.Source, next[m.Source]))
		}
		next[m.Source]++
		got++
	})
	if err := job.Barrier(ctx); err != nil {
		return err
	}
	if job.Rank() == 0 {
		n := number(args, 0, 100)
		fmt.Println("playing")
		for i := range n {
			for other := 1; other < job.Size(); other++ {
				if err := job.Send(ctx, other, ping, [2]uint64{uint64(i)}, payload(uint64(i))); err != nil {
					return err
				}
			}
			for got < (i+1)*(job.Size()-1) {
				if _, err := job.Wait(ctx); err != nil {
					return err
				}
			}
			time.Sleep(time.Duration(number(args, 1, 0)) * time.Millisecond)
		}
		fmt.Println(got, "messages came back")
	}
	return job.Finalize(ctx)
}

// insert FILE tries to insert an extension and prints the result.
func insert(args []string) error {
	_, job, err := join()
	if err != nil {
		return err
	}
	object, err := os.ReadFile(args[0])
	if err != nil {
		return err
	}
	x, err := job.Insert(margay.ExtensionSpec{Object: object})
	if err != nil {
		fmt.Println("refused:", err)
		return nil
	}
	fmt.Println("inserted as", x.Handle())
	return nil
}

// compose CALLEE CALLER inserts two extensions, passes the second the handle of the first, sends a
// message and prints when it is delivered.
func compose(args []string) error {
	ctx, job, err := join()
	if err != nil {
		return err
	}
	callee, err := insertFile(job, args[0], margay.ExtensionSpec{Name: "callee"})
	if err != nil {
		return err
	}
	helper := map[string]uint64{"helper": uint64(callee.Handle())}
	if _, err := insertFile(job, args[1], margay.ExtensionSpec{Name: "caller", Constants: helper}); err != nil {
		return err
	}
	job.Handle(0, func(margay.Message) { fmt.Println("delivered") })
	if err := job.Send(ctx, job.Rank(), 0, [2]uint64{2}, nil); err != nil {
		return err
	}
	return job.Finalize(ctx)
}

// insertFile inserts the extension in a file.
func insertFile(job *margay.Job, file string, spec margay.ExtensionSpec) (*margay.Extension, error) {
	var err error
	if spec.Object, err = os.ReadFile(file); err != nil {
		return nil, err
	}
	return job.Insert(spec)
}

// spread FILE N lets the ranks send N messages each, to any rank. An extension sends them on to the
// ranks that own their numbers.
func spread(args []string) error {
	ctx, job, err := join()
	if err != nil {
		return err
	}
	const handler = 9
	if job.LocalRank() == 0 {
		_, err := insertFile(job, args[0], margay.ExtensionSpec{Constants: map[string]uint64{"handler": handler, "ranks": uint64(job.Size())}})
		if err != nil {
			return err
		}
	}
	came := make([]int, job.Size())
	job.Handle(handler, func(m margay.Message) {
		if m.Args[0]%uint64(job.Size()) != uint64(job.Rank()) || m.Args[1] != uint64(m.Source) || job.NodeOf(m.Source) != m.Node {
			panic(fmt.Sprintf("rank %d got %+v", job.Rank(), m))
		}
		came[m.Source]++
	})
	if err := job.Barrier(ctx); err != nil {
		return err
	}
	for i := range number(args, 1, 1000) {
		// Not to the owner's neighbour each time: i goes by eights, and the targets by sevens.
		if err := job.Send(ctx, i%7%job.Size(), handler, [2]uint64{uint64(i), uint64(job.Rank())}, nil); err != nil {
			return err
		}
	}
	if err := job.Barrier(ctx); err != nil {
		return err
	}
	sum := 0
	for _, n := range came {
		sum += n
	}
	fmt.Printf("rank %d owns %d messages, %d of each rank\n", job.Rank(), sum, slices.Max(came))
	if slices.Min(came) != slices.Max(came) {
		return fmt.Errorf("messages came unevenly: %v", came)
	}
	return job.Finalize(ctx)
}

// upcalls FILE N has rank 0 interrupt the others N times while they compute.
func upcalls(args []string) error {
	ctx, job, err := join()
	if err != nil {
		return err
	}
	const handler = 200
	if job.LocalRank() == 0 {
		if _, err := insertFile(job, args[0], margay.ExtensionSpec{}); err != nil {
			return err
		}
	}
	n := number(args, 1, 1000)
	var came atomic.Int64
	job.Handle(handler, func(m margay.Message) {
		if m.Args[0] != uint64(came.Add(1)) {
			panic(fmt.Sprintf("upcall %d came as %d", came.Load(), m.Args[0]))
		}
	})
	if err := job.Barrier(ctx); err != nil {
		return err
	}
	if job.Rank() != 0 {
		job.Upcalls()
		for came.Load() < int64(n) {
		}
		fmt.Printf("rank %d was interrupted for %d messages\n", job.Rank(), came.Load())
		return job.Finalize(ctx)
	}
	for i := range n {
		for rank := 1; rank < job.Size(); rank++ {
			if err := job.Send(ctx, rank, handler, [2]uint64{uint64(i + 1)}, nil); err != nil {
				return err
			}
		}
	}
	return job.Finalize(ctx)
}

// hog FILE SECONDS inserts an extension and sends messages to this rank, as many as there is room
// for, until the time is over.
func hog(args []string) error {
	ctx, job, err := join()
	if err != nil {
		return err
	}
	x, err := insertFile(job, args[0], margay.ExtensionSpec{})
	if err != nil {
		return err
	}
	if err := job.Barrier(ctx); err != nil {
		return err
	}
	fmt.Println("hogging", rank())
	for end := time.Now().Add(time.Duration(number(args, 1, 5)) * time.Second); time.Now().Before(end); {
		if err := job.Send(ctx, job.Rank(), 0, [2]uint64{}, nil); err != nil {
			return err
		}
	}
	s, err := x.Stats()
	if err != nil {
		return err
	}
	fmt.Printf("the extension ran %d instructions, %d faults\n", s.Instructions, s.Faults)
	return job.Finalize(ctx)
}

// extension FILE inserts an extension and sends messages to this rank until the extension is gone.
// Then messages must come through.
func extension(args []string) error {
	ctx, job, err := join()
	if err != nil {
		return err
	}
	x, err := insertFile(job, args[0], margay.ExtensionSpec{})
	if err != nil {
		return err
	}
	arrived := 0
	job.Handle(0, func(margay.Message) { arrived++ })
	var last margay.Stats
	sent := 0
	for ; sent < 1000; sent++ {
		if err := job.Send(ctx, job.Rank(), 0, [2]uint64{}, []byte("message")); err != nil {
			return err
		}
		for arrived <= sent {
			if _, err := job.Wait(ctx); err != nil {
				return err
			}
		}
		s, err := x.Stats()
		if errors.Is(err, margay.ErrNotFound) {
			fmt.Printf("after %d messages the extension is gone; all %d were delivered; last fault %s\n", sent+1, arrived, last.LastFault)
			return job.Finalize(ctx)
		}
		if err != nil {
			return err
		}
		last = s
	}
	fmt.Printf("%d messages, %d delivered, %d faults\n", sent, arrived, last.Faults)
	return job.Finalize(ctx)
}
