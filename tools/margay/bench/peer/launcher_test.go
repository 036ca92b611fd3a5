package peer

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"margay/tools/margay/bench/launches"
)

// A launcher that is installed runs its processes, and reports those that fail; the error names the
// package of one that is not.
func TestLaunchers(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*limit)
	defer cancel()
	for _, name := range LauncherNames() {
		l, err := FindLauncher(name, t.TempDir())
		if err != nil {
			if !strings.Contains(err.Error(), "Debian packages") {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		s, err := l.Begin(ctx, Hosts{Count: 3, CPUs: 2})
		if needsRoot(err) {
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		runLauncher(ctx, t, s.Contender)
		if err := s.Close(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := FindLauncher("ssh", t.TempDir()); err == nil {
		t.Error("ssh is known")
	}
}

// runLauncher lets a launcher on three hosts run processes that succeed and that fail.
func runLauncher(ctx context.Context, t *testing.T, c launches.Contender) {
	t.Helper()
	marks := t.TempDir()
	script := filepath.Join(marks, "script")
	if err := os.WriteFile(script, []byte("#!/bin/sh\nmktemp "+marks+"/mark-XXXXXX\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, w := range []launches.Work{{Nodes: 3, Program: script}, {Nodes: 3, Program: script, Jobs: 3, AtOnce: 2}} {
		if took, err := c.Run(ctx, w); err != nil || took <= 0 {
			t.Errorf("%s: %v: %v, %v", c.Name, w, took, err)
		}
	}
	if found, err := filepath.Glob(marks + "/mark-*"); err != nil || len(found) != 3+3*3 {
		t.Errorf("%s: %d processes have run, %v", c.Name, len(found), err)
	}
	if c.Name == "pdsh" {
		return // it reports no status of its commands
	}
	for _, w := range []launches.Work{{Nodes: 3, Program: "/bin/false"}, {Nodes: 3, Program: "/bin/false", Jobs: 3, AtOnce: 2}} {
		if _, err := c.Run(ctx, w); err == nil {
			t.Errorf("%s: /bin/false succeeds: %v", c.Name, w)
		}
	}
}

// play puts programs in front of all others: scripts that take the place of installed ones.
func play(t *testing.T, scripts map[string]string) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range scripts {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

// played begins a session of a launcher whose programs are played.
func played(t *testing.T, name string, h Hosts) (*Session, error) {
	t.Helper()
	l, err := FindLauncher(name, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return l.Begin(t.Context(), h)
}

// Hydra reads 1,000 hosts in a file, because it refuses so many in its arguments. Pdsh has them
// there, and starts all processes at the same time.
func TestManyHosts(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out")
	t.Setenv("OUT", out)
	play(t, map[string]string{
		"mpiexec.mpich": `
while [ "$1" != -f ]; do
	case $1 in -hosts) exit 1 ;; esac
	shift
done
cat "$2" >"$OUT"; shift 2; echo "$@" >>"$OUT"`,
		"pdsh": `echo "$@" >"$OUT"`,
	})
	names := hosts(1000)
	for name, want := range map[string]string{
		"MPICH hydra": strings.Join(names, "\n") + "\n-ppn 1 -n 1000 prog\n",
		"pdsh":        "-R exec -f 1000 -w " + strings.Join(names, ",") + " prog\n",
	} {
		s, err := played(t, name, Hosts{Count: 1000, CPUs: 1})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Run(t.Context(), launches.Work{Nodes: 1000, Program: "prog"}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got, err := os.ReadFile(out); err != nil || string(got) != want {
			t.Errorf("%s: %.200q, %v", name, got, err)
		}
	}
}

// playedSlurm are the programs of a Slurm, which refuse another configuration than the one of the
// session: slurmd -N makes a file for its host, and sinfo counts them. The channel is closed when
// slurmctld has ended.
func playedSlurm(t *testing.T, changes map[string]string) (folder string, ended chan struct{}) {
	t.Helper()
	folder, ended = t.TempDir(), make(chan struct{})
	t.Setenv("PLAYED", folder)
	t.Setenv("SLURM_CONF", "/etc/slurm/slurm.conf")
	t.Setenv("SLURM_JOB_ID", "7")
	alive := filepath.Join(folder, "alive")
	if err := unix.Mkfifo(alive, 0o600); err != nil {
		t.Fatal(err)
	}
	go func() {
		_, _ = os.ReadFile(alive) // until its last writer has ended
		close(ended)
	}()
	const own = `grep -q munge.socket "$SLURM_CONF" && [ -z "$SLURM_JOB_ID" ] || exit 3; `
	scripts := map[string]string{
		"munged":    own + "true",
		"slurmctld": own + "sleep 3600 >$PLAYED/alive 2>&1 &",
		"slurmd":    own + `touch "$PLAYED/$2"`,
		"sinfo":     own + "ls $PLAYED | grep -c ^n",
		"srun":      own + `echo "$@" >$PLAYED/job`,
	}
	maps.Copy(scripts, changes)
	play(t, scripts)
	return folder, ended
}

// needsRoot reports whether a Slurm cannot begin because others than root make no namespaces.
func needsRoot(err error) bool { return os.Geteuid() != 0 && errors.Is(err, os.ErrPermission) }

// Slurm has a daemon for each host, a configuration of its own, and ends with its session.
func TestSlurm(t *testing.T) {
	folder, ended := playedSlurm(t, nil)
	s, err := played(t, "Slurm", Hosts{Count: 5, CPUs: 2})
	if needsRoot(err) {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(s.Note, "The daemons of Slurm on 5 pretended hosts were up after ") {
		t.Error(s.Note)
	}
	if found, err := filepath.Glob(folder + "/n?"); err != nil || len(found) != 5 {
		t.Errorf("daemons %v, %v", found, err)
	}
	if _, err := s.Run(t.Context(), launches.Work{Nodes: 5, Program: "prog"}); err != nil {
		t.Error(err)
	}
	if job, err := os.ReadFile(folder + "/job"); err != nil || string(job) != "--nodes 5 --ntasks 5 prog\n" {
		t.Errorf("%q, %v", job, err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	<-ended
}

// A Slurm that cannot start says why and leaves nothing, and it is refused on too many hosts.
func TestSlurmFails(t *testing.T) {
	_, ended := playedSlurm(t, map[string]string{"slurmd": `[ "$2" != n1 ] || { echo no luck >&2; exit 1; }`})
	_, err := played(t, "Slurm", Hosts{Count: 3, CPUs: 1})
	if needsRoot(err) {
		return
	}
	if err == nil || err.Error() != "its daemons have not started: no luck" {
		t.Error(err)
	}
	<-ended
	_, err = played(t, "Slurm", Hosts{Count: mostSlurmds + 1, CPUs: 1})
	if want := fmt.Sprintf("this host starts at most %d", mostSlurmds); err == nil || !strings.Contains(err.Error(), want) {
		t.Error(err)
	}
}

// The start of a Slurm ends with the context, and all of it has ended then.
func TestSlurmInterrupted(t *testing.T) {
	folder, ended := playedSlurm(t, map[string]string{"sinfo": "touch $PLAYED/asked"})
	l, err := FindLauncher("Slurm", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	begun := make(chan error)
	go func() {
		_, err := l.Begin(ctx, Hosts{Count: 2, CPUs: 1})
		begun <- err
	}()
	for {
		if _, err := os.Stat(folder + "/asked"); err == nil {
			break
		}
		select {
		case err := <-begun:
			if !needsRoot(err) {
				t.Fatal(err)
			}
			return
		case <-time.After(time.Millisecond):
		}
	}
	cancel(cause)
	if err := <-begun; !errors.Is(err, cause) {
		t.Error(err)
	}
	<-ended
}

// A Slurm ends when the process that has begun it is killed.
func TestSlurmKilled(t *testing.T) {
	if os.Getenv("PLAYED") != "" { // the process that is killed
		_, err := played(t, "Slurm", Hosts{Count: 2, CPUs: 1})
		fmt.Println("begun:", needsRoot(err), err)
		<-t.Context().Done()
	}
	_, ended := playedSlurm(t, nil)
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestSlurmKilled$")
	output, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(output).ReadString('\n')
	if err := errors.Join(err, cmd.Process.Kill()); err != nil {
		t.Error(err)
	}
	_ = cmd.Wait() // it was killed
	if strings.HasPrefix(line, "begun: true") {
		return
	}
	if line != "begun: false <nil>\n" {
		t.Fatal(line)
	}
	<-ended
}
