package e2e

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

func attacker() string { return filepath.Join(scratch, "attacker") }

// An application's attempts through Linux, and the errors that it gets on a node with a Linux of
// its own.
const systemTries = `signal PID 1: operation not permitted
signal PID 1 by a descriptor: operation not permitted
signal any other process: there is none
trace PID 1: operation not permitted
seize PID 1: operation not permitted
trace any other process: there is none
read memory of PID 1: operation not permitted
take a descriptor of PID 1: operation not permitted
limit PID 1: operation not permitted
move PID 1: operation not permitted
slow PID 1 down: operation not permitted
see other processes: there is none
watch PID 1: permission denied
watch core 0: permission denied
read /proc/1/mem: permission denied
read /proc/1/environ: permission denied
read /proc/1/maps: permission denied
read /proc/1/fd: permission denied
read /proc/1/root: permission denied
enter the mounts of PID 1: permission denied
enter the network of PID 1: permission denied
read the node's configuration: no such file or directory
read the victim's file: no such file or directory
see the file locks of others: EOF
see the keys of others: EOF
read /dev/mem: no such file or directory
read /dev/port: no such file or directory
read /dev/kmsg: no such file or directory
read the log of Linux: operation not permitted
make /dev/mem: operation not permitted
read control groups: no such file or directory
mount control groups: operation not permitted
mount anything: operation not permitted
mount by a descriptor: operation not permitted
unmount /proc: operation not permitted
change the root: operation not permitted
exchange the root: operation not permitted
write /etc/passwd: permission denied
write /proc/sys/kernel/panic: permission denied
write /proc/sys/kernel/core_pattern: permission denied
write /proc/sys/kernel/hostname: permission denied
write /proc/sysrq-trigger: permission denied
be spared when memory runs out: permission denied
become root: operation not permitted
join groups: operation not permitted
take a capability: operation not permitted
allow new privileges: invalid argument
raise an ambient capability: operation not permitted
lie about its own memory: operation not permitted
run in real time: operation not permitted
run with a deadline: operation not permitted
run before others: permission denied
leave its cores: invalid argument
make namespaces: operation not permitted
be root in a user namespace: no space left on device
take the root away: no space left on device
move the root: no space left on device
leave the root: no space left on device
put the root elsewhere: no space left on device
enter the root again: no space left on device
mount another /proc: no space left on device
mount another /sys: no space left on device
make a map of BPF: operation not permitted
list programs of BPF: operation not permitted
leave a key behind: required key not available
load a module: operation not permitted
load another kernel: operation not permitted
switch off: operation not permitted
swap: operation not permitted
set the clock: operation not permitted
change the host name: operation not permitted
open a file by its handle: operation not permitted
read frames: operation not permitted
make packets: operation not permitted
use an interface: there is none
reach the host by vsock: address family not supported by protocol
see sockets of others: there is none
connect to 10.66.0.1:7117: network is unreachable
connect to 10.66.1.0:7118: network is unreachable
`

// hostMay lists the attempts that the Linux of a host may permit to every user, and that a hosted
// node cannot forbid for its jobs alone. None of them reaches anything of the node or of another
// job.
var hostMay = []string{"leave its cores", "be root in a user namespace", "leave a key behind", "reach the host by vsock"}

// ordinaryMay lists the further attempts that Linux permits to a job on a hosted node of an
// ordinary user: there the job is the same user as its own init.
var ordinaryMay = []string{"signal PID 1", "signal PID 1 by a descriptor", "limit PID 1", "read /proc/1/fd", "write /etc/passwd"}

// An application's requests to its node kernel, the answers, and the lines in the log of
// extensions, where V is the victim's extension. An attempt without a line has reached only the
// application's own objects.
var nodeTries = []struct{ name, told, logged string }{
	{"insert a trusted extension", "only the machine has trusted extensions", "(attack): refused: only the machine has trusted"},
	{"insert into slot boot", "slot boot takes only", "(attack): refused: slot boot takes only"},
	{"insert into slot trap", "slot trap takes no extensions", "(attack): refused: slot trap takes"},
	{"insert into no slot", `there is no slot "victim/message"`, `(attack): refused: there is no slot "victim/message"`},
	{"set a variable that does not exist", `it has no variable "victim"`, `(attack): refused: it has no variable "victim"`},
	{"set more entries than there is memory", "bytes of maps", `bytes of maps`},
	{"forge a name", "cannot be printed", `(x?margay: all is well?[2J): refused: `},
	{"remove the victim's extension", "no such extension", "rank 0 is refused: extension V is one of job "},
	{"read the victim's statistics", "no such extension", "rank 0 is refused: extension V is one of job "},
	{"read the victim's state", "no such extension", "rank 0 is refused: extension V is one of job "},
	{"read the victim's region", `region "secret": no such`, ""},
	{"make a region of all memory", "no room for more", `rank 0 is refused: region "all": no room for more`},
	{"fetch a channel that is not", "rank 0 has no channel 1099511627776", "rank 0 is refused: rank 0 has no channel 1099511627776"},
	{"take the doorbell of no rank", "there is no local rank 7", "rank 0 is refused: there is no local rank 7"},
	{"remove an extension that is not", "no such extension", "rank 0 is refused: there has never been an extension 4294967295"},
	{"remove extension 0", "no such extension", "rank 0 is refused: there has never been an extension 0"},
	{"ask in 3 bytes", "request of 3 bytes", "rank 0 is refused: wire: request of 3 bytes"},
	{"ask in too many bytes", "request of 1433 bytes", "rank 0 is refused: wire: request of 1433 bytes"},
	{"make an unknown request", "request 4242 is unknown", "rank 0 is refused: request 4242 is unknown"},
	{"ask with settings that are not there", "with 200 settings", "rank 0 is refused: wire: request of 152 bytes with 200 settings"},
	{"insert nothing", "0 files came", "rank 0 is refused: insert: 0 files came with the request, 1 expected"},
	{"insert a pipe", "is not a regular file", "rank 0 is refused: the extension's object is not a regular file"},
	{"insert three files", "3 files came", "rank 0 is refused: insert: 3 files came with the request, 1 expected"},
	{"call the victim's extension", "its handle is none in this job", "(caller): its call is refused: extension V is one of job "},
	{"send in the name of another", "its source is true", ""},
	{"shrink what the node kernel maps", "operation not permitted", ""},
}

// An application that attacks the node and the job beside it is refused each attempt. Its requests
// to its node kernel are logged, and the other job is not affected. Linux itself refuses the other
// attempts, and the node is not notified of these.
func TestAttacker(t *testing.T) {
	onBoth(t, func(t *testing.T, m *machine) {
		victim := m.start("run", attacker(), "victim")
		victim.awaitOutput("victim ")
		eventually(t, "a line", func() bool { return strings.HasSuffix(victim.stdout.String(), "\n") }, victim.stdout.String)
		handle := strings.TrimSpace(strings.TrimPrefix(victim.stdout.String(), "victim "))

		r := m.run(0, attacker(), "system", "10.66.0.1:7117", "10.66.1.0:7118")
		may := hostMay
		if !m.hosted() {
			may = nil
		}
		checkSystem(t, may, r.stdout)

		caller := extension(t, "caller", "0")
		r = m.run(0, "--with", caller, attacker(), "node", handle, caller)
		log := m.margay("ext", "log", "--node", "0").stdout
		lines := strings.Split(strings.TrimSpace(r.stdout), "\n")
		if len(lines) != len(nodeTries) {
			t.Fatalf("%d lines, want %d: %v", len(lines), len(nodeTries), r)
		}
		for i, try := range nodeTries {
			t.Log(lines[i])
			if !strings.HasPrefix(lines[i], try.name+": refused: ") || !strings.Contains(lines[i], try.told) {
				t.Errorf("%s, want %s: refused: ... %s", lines[i], try.name, try.told)
			}
			if want := strings.ReplaceAll(try.logged, "V", handle); !strings.Contains(log, want) {
				t.Errorf("%s: the log does not have %q:\n%s", try.name, want, log)
			}
		}
		if strings.Contains(log, "\nmargay: all is well") {
			t.Error("it has written a line of its own into the log")
		}
		m.awaitConsole("rank 0 is refused: extension " + handle + " is one of job ")

		if r := m.run(125, attacker(), "ring"); !strings.Contains(r.stderr, "the area was written over") {
			t.Error(r)
		}
		// The rank beside it has found nonsense in its channel.
		if r := m.run(2, "-n", "2", "-N", "1", attacker(), "channels"); !strings.Contains(r.stderr, "channel from rank 0") || !strings.Contains(r.stderr, "written over") {
			t.Error(r)
		}
		victim.signal(15)
		if r := victim.wait(); r.code != 0 || !strings.HasSuffix(r.stdout, "\nmessages counted: true all by one node kernel: true region whole: true file whole: true <nil>\n") {
			t.Errorf("the victim: %v", r)
		}
		m.usable()
	})
}

// A job that has damaged the state that the next node kernel adopts ends, and harms neither that
// kernel nor the job beside it.
func TestAttackerOfNextKernel(t *testing.T) {
	m := use(t, "hosted")
	victim := m.start("run", attacker(), "victim")
	victim.awaitOutput("\n")
	job, err := strconv.Atoi(m.onlyJob())
	if err != nil {
		t.Fatal(err)
	}
	for what, says := range map[string]string{
		"shape":     "it was restarted and has lost the job",
		"positions": "the area was written over",
	} {
		job++
		hostile := m.start("run", "-n", "2", attacker(), "area", what)
		hostile.awaitOutput("damaged")
		hostile.awaitOutput("ready")
		before := m.nodeKernels()
		if r := m.margay("machine", "restart", "0"); r.code != 0 {
			t.Fatal(r)
		}
		next := slices.DeleteFunc(m.nodeKernels(), func(pid int) bool { return slices.Contains(before, pid) })
		if len(next) != 1 {
			t.Fatalf("node kernels %v, before the restart %v", m.nodeKernels(), before)
		}
		if what == "positions" {
			m.margay("kill", "-s", "USR1", "--rank", "1", strconv.Itoa(job))
		}
		if r := hostile.wait(); r.code != 125 || !strings.Contains(r.stderr, says) {
			t.Errorf("%s: %v", what, r)
		}
		if now := m.nodeKernels(); !slices.Contains(now, next[0]) {
			t.Errorf("%s: node kernel %d has ended, there are %v", what, next[0], now)
		}
	}
	victim.signal(15)
	if r := victim.wait(); r.code != 0 || !strings.Contains(r.stdout, "messages counted: true all by one node kernel: false region whole: true file whole: true <nil>") {
		t.Errorf("the victim: %v", r)
	}
	m.usable()
}

// A descriptor from an application that would take an hour to close holds up nothing: the job ends,
// and others continue.
func TestAttackerHoldsUp(t *testing.T) {
	onBoth(t, func(t *testing.T, m *machine) {
		ways := []string{"request", "doorbell"}
		if m.hosted() {
			ways = append(ways, ways...) // which side is faster is not certain
		}
		for _, way := range ways {
			m.run(0, attacker(), "hold", way)
			m.awaitIdle()
		}
		m.usable()
	})
}

// checkSystem compares the results that an application got with systemTries. Where some attempts
// are permitted, Linux may refuse the others for other reasons.
func checkSystem(t *testing.T, may []string, said string) {
	t.Helper()
	lines, wants := strings.Split(said, "\n"), strings.Split(systemTries, "\n")
	if len(lines) != len(wants) {
		t.Fatalf("%d lines, want %d:\n%s", len(lines), len(wants), said)
	}
	for i, want := range wants {
		if want == "" {
			continue
		}
		t.Log(lines[i])
		name, reason, _ := strings.Cut(want, ": ")
		if strings.HasPrefix(name, "connect to") { // an address has colons, too
			name, reason = want[:strings.LastIndex(want, ": ")], want[strings.LastIndex(want, ": ")+2:]
		}
		switch {
		case may == nil && lines[i] != name+": refused: "+reason:
			t.Errorf("%s, want %s: refused: %s", lines[i], name, reason)
		case may != nil && !strings.HasPrefix(lines[i], name+": refused: ") && !(lines[i] == name+": DONE" && slices.Contains(may, name)):
			t.Errorf("%s", lines[i])
		}
	}
}

// All remains of an application end with it: processes that hide, hold its memory and sockets, and
// resist termination; extensions, regions, mounts. This holds for each way in which the application
// ends.
func TestNothingIsLeft(t *testing.T) {
	type end = func(m *machine, c *command)
	everywhere := map[string]end{
		"by itself":         func(*machine, *command) {},
		"margay run killed": func(m *machine, c *command) { kill(m.t, c.cmd.Process.Pid) },
	}
	hosted := map[string]end{
		"ranks killed": func(m *machine, _ *command) {
			job := m.onlyJob()
			for _, rank := range []string{"0", "1"} {
				m.margay("kill", "-s", "KILL", "--rank", rank, job)
			}
		},
		"init killed": func(m *machine, _ *command) { // in a guest it cannot be reached
			for _, pid := range pids(m.t, attacker()+" stay wait") {
				if name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)); strings.HasPrefix(string(name), "attacker") {
					kill(m.t, parent(pid))
				}
			}
		},
	}
	onBoth(t, func(t *testing.T, m *machine) {
		m.run(0, "-n", m.all(), attacker(), "remains") // objects that are made only once exist now
		before := m.remains()
		ends := maps.Clone(everywhere)
		if m.hosted() {
			maps.Copy(ends, hosted)
		}
		for name, end := range ends {
			t.Run(name, func(t *testing.T) {
				m := *m
				m.t = t
				args := []string{"run", "-n", "2", attacker(), "stay"}
				if name != "by itself" {
					args = append(args, "wait")
				}
				c := m.start(args...)
				eventually(t, "both ranks", func() bool { return strings.Count(c.stdout.String(), "staying as extension") == 2 },
					func() string { return c.stdout.String() + c.stderr.String() })
				end(&m, c)
				if r := c.wait(); name == "by itself" && r.code != 0 {
					t.Error(r)
				}
				m.awaitIdle()
				var after leftovers
				eventually(t, "end of all that it left", func() bool {
					after = m.remains()
					return after.within(before)
				}, func() string { return fmt.Sprintf("before %+v, after %+v", before, after) })
				if list := m.margay("ext", "list", "--node", "0").stdout; regexp.MustCompile(`(?m) stay .* active`).MatchString(list) {
					t.Errorf("its extensions are left:\n%s", list)
				}
			})
		}
		m.usable()
	})
}

// leftovers counts the objects of jobs on a machine, or on its node0.
type leftovers struct {
	processes, mounts, memories int // of hosted nodes
	threads, groups, shared     int // of the Linux of a guest; shared memory in KiB
}

// within reports whether nothing has been added. Some counts vary without a leak: Linux counts the
// memory of a guest for each processor, and adds the counts up now and then; it keeps some dead
// groups whose memory a processor has set aside for reuse; a node kernel sometimes has one more
// thread, and may or may not have started a job init ahead. The remains of one job that leaks here,
// or of all jobs that only look, exceed this.
func (l leftovers) within(before leftovers) bool {
	return l.processes <= before.processes && l.threads <= before.threads+9 && l.mounts <= before.mounts && l.memories <= before.memories &&
		l.groups <= before.groups+16 && l.shared <= before.shared+256
}

// remains counts leftovers: on the host by the processes of hosted nodes, in a guest by the counts
// of its Linux.
func (m *machine) remains() (l leftovers) {
	m.t.Helper()
	if !m.hosted() {
		r := m.run(0, attacker(), "remains")
		if n, err := fmt.Sscanf(r.stdout, "remains %d %d %d", &l.shared, &l.threads, &l.groups); n != 3 {
			m.t.Fatalf("%v: %v", err, r)
		}
		return l
	}
	m.spares()
	namespaces := make(map[string]bool)
	for _, pid := range m.processes() {
		l.processes++
		if name, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", pid)); err == nil {
			namespaces[name] = true
		}
		files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
		for _, f := range files {
			if name, err := os.Readlink(f); err == nil && strings.HasPrefix(name, "/memfd:") {
				l.memories++
			}
		}
	}
	l.mounts = len(namespaces)
	return l
}

// processes returns the processes below the machine's holder.
func (m *machine) processes() []int {
	m.t.Helper()
	holder, _ := m.status()
	children := make(map[int][]int)
	files, _ := filepath.Glob("/proc/[0-9]*")
	for _, f := range files {
		var pid int
		fmt.Sscan(filepath.Base(f), &pid)
		children[parent(pid)] = append(children[parent(pid)], pid)
	}
	all := []int{holder}
	for i := 0; i < len(all); i++ {
		all = append(all, children[all[i]]...)
	}
	return all
}
