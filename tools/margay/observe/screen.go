package observe

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"margay/cluster/client"
	"margay/cluster/control"
	"margay/cluster/rates"
	"margay/tools/margay/command"
	"margay/tools/margay/show"
)

// Control sequences of terminals (ECMA-48, and the private modes of xterm).
const (
	enterScreen = "\x1b[?1049h\x1b[?25l" // the alternate screen, without a cursor
	leaveScreen = "\x1b[?25h\x1b[?1049l"
	home        = "\x1b[H"
	clearLine   = "\x1b[K"
	clearBelow  = "\x1b[J"
	bold        = "\x1b[1m"
	plain       = "\x1b[m"
)

// screen is a terminal that a command fills.
type screen struct {
	in, out *os.File
	before  *unix.Termios // the settings of in before; nil: it is not a terminal
}

// openScreen takes the terminal. Keys come one by one then, and are not shown.
func openScreen(in, out *os.File) *screen {
	s := &screen{in: in, out: out}
	s.enter()
	return s
}

func (s *screen) enter() {
	if t, err := unix.IoctlGetTermios(int(s.in.Fd()), unix.TCGETS); err == nil {
		if s.before == nil {
			s.before = t
		}
		raw := *t
		raw.Lflag &^= unix.ICANON | unix.ECHO
		raw.Cc[unix.VMIN], raw.Cc[unix.VTIME] = 1, 0
		_ = unix.IoctlSetTermios(int(s.in.Fd()), unix.TCSETSW, &raw)
	}
	fmt.Fprint(s.out, enterScreen)
}

// leave gives the terminal back as it was.
func (s *screen) leave() {
	fmt.Fprint(s.out, leaveScreen)
	if s.before != nil {
		_ = unix.IoctlSetTermios(int(s.in.Fd()), unix.TCSETSW, s.before)
	}
}

// background reports whether another process group has the terminal.
func (s *screen) background() bool {
	group, err := unix.IoctlGetInt(int(s.in.Fd()), unix.TIOCGPGRP)
	return err == nil && group != unix.Getpgrp()
}

// size returns the terminal's, or a usual one when it does not know.
func (s *screen) size() (columns, lines int) {
	columns, lines, err := term.GetSize(int(s.out.Fd()))
	if err != nil || columns == 0 || lines == 0 {
		return 80, 24
	}
	return columns, lines
}

// draw shows lines, those from top on below the first, each from the column left on; the last line
// of the terminal is for status.
func (s *screen) draw(lines []string, top, left int, status string) {
	columns, rows := s.size()
	var b strings.Builder
	b.WriteString(home)
	line := func(text, end string) {
		b.WriteString(cut(text, columns) + clearLine + end)
	}
	for i := range rows - 1 {
		at := i
		if i > 0 {
			at += top
		}
		if at < len(lines) {
			line(from(lines[at], left), "\r\n")
		} else {
			line("", "\r\n")
		}
	}
	b.WriteString(bold)
	line(status, plain+clearBelow)
	fmt.Fprint(s.out, b.String())
}

// cut shortens a text to so many characters.
func cut(text string, columns int) string {
	runes := []rune(text)
	return string(runes[:min(len(runes), columns)])
}

// from leaves out the first characters of a text.
func from(text string, left int) string {
	runes := []rune(text)
	return string(runes[min(len(runes), left):])
}

// keys reads the pressed keys until the end of the input.
func (s *screen) keys() <-chan byte {
	keys := make(chan byte)
	go func() {
		defer close(keys)
		var b [1]byte
		for {
			if n, err := s.in.Read(b[:]); err != nil || n == 0 {
				return
			}
			keys <- b[0]
		}
	}()
	return keys
}

// helpLines describe the keys.
var helpLines = []string{
	"q        quit",
	"n        sort by node and core",
	"c        sort by CPU",
	"m        sort by messages",
	"s        sort by switches",
	"i        sort by interrupts",
	"up, k    scroll",
	"down, j",
	"left, h  scroll sideways",
	"right, l",
	"w        all columns, or as many as there is room for",
	"?        this help, and back",
}

// arrows are the keys for what arrow keys send after escape and bracket (or O).
var arrows = map[byte]byte{'A': 'k', 'B': 'j', 'C': 'l', 'D': 'h'}

// sideways is by how many columns the screen scrolls to a side.
const sideways = 8

// orderKeys are the keys that sort.
var orderKeys = map[byte]rates.Order{
	'n': rates.ByCore, 'c': rates.ByCPU, 'm': rates.ByMessages, 's': rates.BySwitches, 'i': rates.ByInterrupts,
}

// topScreen fills the terminal with the figures, until q or a signal.
func (a commands) topScreen(ctx context.Context, interval time.Duration, order rates.Order) error {
	out, _ := show.FileOf(a.Stdout)
	in, ok := show.FileOf(a.Stdin)
	if !ok {
		in = os.Stdin
	}
	signals, stop := command.Catch(8, unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT, unix.SIGWINCH, unix.SIGTSTP, unix.SIGCONT)
	defer stop()
	s := openScreen(in, out)
	defer s.leave()
	t := &topLoop{commands: a, screen: s, order: order, interval: interval}
	return t.run(ctx, signals)
}

// topLoop is the state of the screen.
type topLoop struct {
	commands
	screen   *screen
	order    rates.Order
	interval time.Duration
	top      int // lines that are scrolled away
	left     int // columns that are scrolled away
	wide     bool
	help     bool
	escape   int  // how much has come of the sequence of an arrow key
	away     bool // another program has the terminal
	view     *rates.View
	trouble  error
}

// looked is the answer of the nodes.
type looked struct {
	samples *control.Samples
	err     error
}

func (t *topLoop) run(ctx context.Context, signals <-chan os.Signal) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	keys := t.screen.keys()
	answers := make(chan looked)
	go t.look(ctx, answers)
	var before *control.Samples
	t.draw()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case a := <-answers:
			if client.Gone(a.err) {
				return a.err
			}
			t.trouble = a.err
			if a.err == nil && before != nil {
				t.view = rates.Between(before, a.samples)
			}
			if a.err == nil {
				before = a.samples
			}
		case key, ok := <-keys:
			switch {
			case !ok && t.screen.before == nil:
				keys = nil // no terminal, no keys
			case !ok || key == 'q':
				return nil
			}
			t.key(key)
		case sig := <-signals:
			switch sig {
			case unix.SIGWINCH:
			case unix.SIGTSTP:
				t.stop()
			case unix.SIGCONT:
				t.resume()
			default:
				ended := sig.(unix.Signal)
				return &command.ExitStatus{Code: 128 + int(ended), Signal: ended}
			}
		}
		t.draw()
	}
}

// stop gives the terminal back and stops the process. Linux may stop this thread later than Kill
// returns: nothing is drawn until SIGCONT comes.
func (t *topLoop) stop() {
	if !t.away {
		t.screen.leave()
	}
	t.away = true
	_ = unix.Kill(os.Getpid(), unix.SIGSTOP)
}

// resume takes the terminal again, also after a stop that stop has not seen (SIGSTOP). In the
// background another program has it; the shell sends SIGCONT again when that changes.
func (t *topLoop) resume() {
	if t.screen.background() {
		return
	}
	t.away = false
	t.screen.enter()
}

// look asks the nodes again and again.
func (t *topLoop) look(ctx context.Context, answers chan<- looked) {
	for {
		samples, err := t.Samples(ctx)
		select {
		case answers <- looked{samples, err}:
		case <-ctx.Done():
			return
		}
		select {
		case <-time.After(t.interval):
		case <-ctx.Done():
			return
		}
	}
}

func (t *topLoop) key(key byte) {
	switch {
	case key == '\x1b':
		t.escape = 1
		return
	case t.escape == 1 && (key == '[' || key == 'O'):
		t.escape = 2
		return
	case t.escape == 2:
		key = arrows[key]
	}
	t.escape = 0
	if order, ok := orderKeys[key]; ok {
		t.order, t.top = order, 0
	}
	switch key {
	case 'j':
		t.top++
	case 'k':
		t.top = max(0, t.top-1)
	case 'l':
		t.left += sideways
	case 'h':
		t.left = max(0, t.left-sideways)
	case 'w':
		t.wide, t.left = !t.wide, 0
	case '?':
		t.help = !t.help
	}
}

func (t *topLoop) draw() {
	if t.away {
		return
	}
	width, _ := t.screen.size()
	lines, status := t.content(width)
	t.top = min(t.top, max(0, len(lines)-2))
	t.left = min(t.left, max(0, show.Widest(lines)-sideways))
	t.screen.draw(lines, t.top, t.left, status)
}

// content is what a screen of a width shows.
func (t *topLoop) content(width int) (lines []string, status string) {
	if t.wide {
		width = 0
	}
	lines = []string{fmt.Sprintf("machine %s: looking for %v", t.Machine, t.interval)}
	if t.view != nil {
		t.view.Sort(t.order)
		lines = t.topLines(t.view, width, t.order)
	}
	if t.help {
		lines = append([]string{lines[0], ""}, helpLines...)
	}
	if t.trouble != nil {
		status, _, _ = strings.Cut(t.trouble.Error(), "\n")
		return lines, status
	}
	return lines, fmt.Sprintf("by %s · q quit · ? help · n c m s i sort · arrows scroll · w all columns", t.order)
}
