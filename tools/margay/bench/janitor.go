package bench

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
)

// janitor is a process that ends machines and removes a folder when this process has ended without
// doing so, however it ended.
type janitor struct {
	cmd      *exec.Cmd
	lifeline io.WriteCloser
}

// janitorScript reads a line when all is clean, and the end of its input when this process has
// died.
const janitorScript = `read clean && exit
folder=$1
shift
for machine; do
	"$0" -m "$machine" machine down
done
rm -rf "$folder"`

// startJanitor starts a janitor for machines, which may not exist yet, and a folder.
func startJanitor(folder string, machines []string) (*janitor, error) {
	margay, err := os.Executable()
	if err != nil {
		return nil, err
	}
	j := &janitor{cmd: exec.Command("sh", append([]string{"-c", janitorScript, margay, folder}, machines...)...)}
	j.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // signals of a terminal are not for it
	if j.lifeline, err = j.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := j.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the process that cleans up after a crash: %w", err)
	}
	return j, nil
}

// dismiss ends the janitor when everything is clean.
func (j *janitor) dismiss() error {
	if _, err := fmt.Fprintln(j.lifeline, "clean"); err != nil {
		return err
	}
	return j.cmd.Wait()
}
