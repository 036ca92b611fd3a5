package machine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"margay/cluster/folder"
	"margay/cluster/power/file"
	"margay/cluster/serve"
)

// downWait bounds how long a holder may take to end its machine, with downEach more for each node,
// and to end once it was killed.
const (
	downWait = 30 * time.Second
	downEach = 100 * time.Millisecond
)

// downBound is the bound for the machine in the folder.
func (d Dir) downBound() time.Duration {
	spec, err := d.ReadSpec()
	if err != nil {
		return downWait
	}
	r, err := d.ReadRoster(spec)
	if err != nil {
		return downWait
	}
	bound := downWait + time.Duration(len(r.Nodes))*downEach
	if spec.Metal.File == "" {
		return bound
	}
	rack, err := file.Read(spec.Metal.File)
	if err != nil {
		return bound
	}
	return bound + offTime(rack)
}

// Down ends a machine and removes its folder. If the folder is missing or not a machine's, the
// error is ErrNoMachine, and Down touches nothing. It leaves alone a machine that is made in the
// same place while Down runs. The callback gets notices about jobs that the history of the machine
// lacks.
func Down(ctx context.Context, d Dir, told func(format string, args ...any)) error {
	if err := d.check(); err != nil {
		return err
	}
	making, err := folder.Open(d.makingFile(), os.O_RDONLY)
	if err == nil {
		defer making.Close()
	} else if !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("machine %s: %w", d.Name(), err)
	}
	return (&ending{Dir: d, making: making, notice: told}).run(ctx)
}

// ending is the end of one machine. Another machine may take its folder at any time after its
// holder has ended.
type ending struct {
	Dir
	making *os.File // identifies the machine, and was made with it; nil: it has none
	told   bool     // its holder has been signalled
	notice func(format string, args ...any)
}

// isStill reports whether the folder still belongs to the same machine.
func (e *ending) isStill() bool {
	if e.making == nil {
		_, err := os.Lstat(e.makingFile())
		return errors.Is(err, fs.ErrNotExist)
	}
	return folder.IsStill(e.makingFile(), e.making) == nil
}

// run ends the machine's holder, if it has one, and removes its folder.
func (e *ending) run(ctx context.Context) error {
	deadline := time.Now().Add(e.downBound())
	for killed := false; ; {
		pid, alive := e.Holder()
		if !alive {
			if removed, err := e.remove(); removed || err != nil {
				return err
			}
			continue // it has a holder now
		}
		if !e.isStill() {
			return nil
		}
		if !e.told {
			var err error
			if e.told, err = e.signal(unix.SIGTERM); err != nil {
				return fmt.Errorf("machine %s: end its holder: %w", e.Name(), err)
			}
		}
		if time.Now().After(deadline) {
			if killed {
				return fmt.Errorf("machine %s: its holder (process %d) does not end", e.Name(), pid)
			}
			killed = true
			deadline = deadline.Add(downWait)
			_, _ = e.signal(unix.SIGKILL)
		}
		select {
		case <-time.After(upPoll):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// signal sends a signal to the machine's holder and reports whether there was one. It does not rely
// on the contents of the lock file.
func (e *ending) signal(s os.Signal) (sent bool, err error) {
	f, err := folder.Open(e.lockFile(), os.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	pid := lockedBy(f)
	if pid == 0 || !e.isStill() { // a machine's lock file is made after its making file
		return false, nil
	}
	p, err := os.FindProcess(pid)
	if err != nil {
		return false, err
	}
	defer func() { _ = p.Release() }()
	if lockedBy(f) != pid { // it ended before it was found, and its pid may have been reused
		return false, nil
	}
	if err := p.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return false, fmt.Errorf("process %d: %w", pid, err)
	}
	return true, nil
}

// remove removes the machine's folder. After the last machine it also removes the folder of all
// machines, unless the user has named that. It reports whether the machine is gone, which it is not
// while it has a holder. No other machine can take the folder while remove runs.
func (e *ending) remove() (gone bool, err error) {
	base, err := lockBase(filepath.Dir(string(e.Dir)))
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	defer base.Close()
	if !e.isStill() {
		return true, nil
	}
	if _, alive := e.Holder(); alive {
		return false, nil
	}
	// Once there is a holder the files of a machine are complete: if it was ended here, machine up
	// writes no further files.
	if !e.told && e.making != nil && folder.Locked(e.making) {
		return false, fmt.Errorf("machine %s: %w; end that one first", e.Name(), errBeingMade)
	}
	e.settleHistory(e.notice)
	e.reportLeftOn(e.notice)
	e.removeDoor()
	if err := base.remove(e.Name()); err != nil {
		return false, err
	}
	base.removeEmpty()
	return true, nil
}

// leftOnName is the file with a line for each node that the holder could not switch off at the end
// of the machine, and one for all nodes that are switched by hand.
const leftOnName = "left-on"

// noteLeftOn adds a line to that file.
func (d Dir) noteLeftOn(line string) error {
	f, err := os.OpenFile(d.file(leftOnName), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(f, line)
	return errors.Join(err, f.Close())
}

// reportLeftOn reports which nodes may run on.
func (d Dir) reportLeftOn(told func(format string, args ...any)) {
	text, _ := os.ReadFile(d.file(leftOnName)) // there is none, as a rule
	for line := range strings.Lines(string(text)) {
		told("%s", strings.TrimSuffix(line, "\n"))
	}
}

// settleHistory retries the history records that the machine's last serve could not write, or
// counts them, before the machine's files are removed.
func (d Dir) settleHistory(told func(format string, args ...any)) {
	spec, err := d.ReadSpec()
	if err != nil || spec.history() == nil {
		return // a machine whose spec is not written has run no job
	}
	switch lacking, err := serve.SettleHistory(string(d), spec.history()); {
	case lacking == 1:
		told("the history of machine %s lacks 1 job: %v", spec.Name, err)
	case lacking > 0:
		told("the history of machine %s lacks %d jobs: %v", spec.Name, lacking, err)
	case err != nil:
		told("the history of machine %s may lack jobs: %v", spec.Name, err)
	}
}
