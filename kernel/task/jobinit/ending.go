package jobinit

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// lastEnd is the longest pause between two looks whether a terminal needs another end.
const lastEnd = 500 * time.Millisecond

// endKey ends the input of a terminal that has no key for it.
const endKey = '\x04'

// terminalState is what the end of the input depends on.
type terminalState struct {
	unread bool // a line, an end, or, without lines, a key is left for the next read
	lines  bool // Linux makes lines of the keys; else the rank takes each, as editors do
	key    byte // ends the input
}

// ending types the end of the input of a terminal. In Linux's lines the key ends a line that has
// begun, and else one read, which finds the end: the input has not ended for good. A shell, which
// makes its lines itself, sees the key only if it is typed when the shell reads: Linux turns a key
// that it has taken for the end of a line into a NUL when the shell turns lines off. So the key is
// typed whenever nothing is left to read, as long as the rank lives, and one at a time.
type ending struct {
	begun  bool          // the last line has no end
	before terminalState // at the last look
}

// next returns the keys to type, none if there is something to read, or the state has just changed.
func (e *ending) next(now terminalState) []byte {
	settled := e.before == now
	e.before = now
	if now.unread || !settled {
		return nil
	}
	begun := e.begun
	e.begun = false
	if begun && !now.lines {
		return []byte{'\r'} // the key is an end only at the begin of a line
	}
	return []byte{now.key}
}

// typeEnd types the end of the input until the rank has ended.
func (i *input) typeEnd(begun bool) {
	e := ending{begun: begun, before: terminalState{unread: true}}
	for pause := firstLook; i.pause(pause); pause = min(2*pause, lastEnd) {
		now, err := stateOf(i.pipe)
		if err != nil {
			continue // no process has it open, or this end is closed
		}
		if keys := e.next(now); len(keys) > 0 {
			_, _ = i.pipe.Write(keys)
		}
	}
}

// pause waits, at most for the given time, and reports whether the rank takes input.
func (i *input) pause(most time.Duration) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if !i.closed {
		i.waitFor(most)
	}
	return !i.closed
}

// stateOf returns the state of the terminal whose near end is given. It opens the far end for a
// moment.
func stateOf(near *os.File) (now terminalState, err error) {
	raw, err := near.SyscallConn()
	if err != nil {
		return now, err
	}
	if e := raw.Control(func(fd uintptr) { now, err = stateOfFD(int(fd)) }); e != nil {
		return now, e
	}
	return now, err
}

func stateOfFD(near int) (now terminalState, err error) {
	settings, err := unix.IoctlGetTermios(near, unix.TCGETS)
	if err != nil {
		return now, os.NewSyscallError("settings of the terminal", err)
	}
	now.lines, now.key = settings.Lflag&unix.ICANON != 0, settings.Cc[unix.VEOF]
	if now.key == 0 {
		now.key = endKey
	}
	far, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(near), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK)
	if errno != 0 {
		return now, os.NewSyscallError("open the far end of the terminal", errno)
	}
	defer unix.Close(int(far))
	ready := []unix.PollFd{{Fd: int32(far), Events: unix.POLLIN}}
	n, err := unix.Poll(ready, 0)
	now.unread = n > 0
	return now, os.NewSyscallError("poll the terminal", err)
}
