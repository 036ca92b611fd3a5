package command

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"margay/internal/progress"
	"margay/tools/margay/show"
)

// NodePrograms finds the program that nodes run, and the job init beside it. Both are of one build.
func NodePrograms(path string) (program, jobInit string, err error) {
	if program, err = BesideMargay("nodekernel", path, "the program that nodes run", "--node-program"); err != nil {
		return "", "", err
	}
	jobInit = filepath.Join(filepath.Dir(program), "jobinit")
	if _, err := os.Stat(jobInit); err != nil {
		return "", "", fmt.Errorf("the init of jobs: %w; make build makes it beside the program that nodes run", err)
	}
	return program, jobInit, nil
}

// Beside is the path of a program that is beside this one.
func Beside(name string) (string, error) {
	self, err := os.Executable()
	return filepath.Join(filepath.Dir(self), name), err
}

// BesideMargay finds a program that is beside this one unless path, from a flag, names another.
func BesideMargay(name, path, what, flag string) (_ string, err error) {
	if path == "" {
		if path, err = Beside(name); err != nil {
			return "", err
		}
	}
	path, err = filepath.Abs(path)
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("%s: %w; make build makes it, %s names another", what, err, flag)
	}
	return path, nil
}

// Progress is shown after progressDelay, every progressInterval.
const (
	progressDelay    = time.Second
	progressInterval = 200 * time.Millisecond
)

// Progress shows the steps of work that takes a while: on a terminal as a line that changes,
// elsewhere a line for each step that moves bytes.
func (a *App) Progress() func(progress.Step) {
	if a.Quiet {
		return func(progress.Step) {}
	}
	terminal := show.IsTerminal(a.Stderr)
	started := time.Now()
	var shown time.Time
	var last string
	return func(s progress.Step) {
		done := s.Done == s.Total
		if time.Since(started) < progressDelay || s.Total == 0 || (s.Text == last && (!terminal || time.Since(shown) < progressInterval && !done)) {
			return
		}
		text := fmt.Sprintf("%s: %.1f of %.1f MB", s.Text, float64(s.Done)/1e6, float64(s.Total)/1e6)
		if terminal && s.Text == last {
			fmt.Fprint(a.Stderr, "\x1b[A\x1b[K")
		}
		if !terminal {
			text = s.Text
		}
		last, shown = s.Text, time.Now()
		fmt.Fprintln(a.Stderr, text)
	}
}
