package job

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"margay/cluster/control"
	"margay/cluster/launch"
	"margay/tools/margay/command"
)

// takeTerminal gives a job the terminal of margay run. Without one, as in a test or a script, the
// rank has a terminal of the usual size, and standard input and output here are what they are.
func takeTerminal(a *command.App, o *launch.Options) error {
	terminal, err := command.NewRawTerminal(a.Stdin)
	if err != nil {
		o.Spec.Terminal = &control.Terminal{Rows: 24, Columns: 80}
		return nil
	}
	o.Terminal, o.Spec.Terminal, o.Status.W = terminal, terminal.Size(), terminal.Writer(a.Stderr)
	return nil
}

// terminfoPlaces are where descriptions of terminals are, after the user's own.
var terminfoPlaces = []string{"/etc/terminfo", "/lib/terminfo", "/usr/share/terminfo"}

// terminfo returns the file that describes the terminal of an environment, which editors need.
func terminfo(env []string) []string {
	value := func(name string) (text string) {
		for _, entry := range env {
			if rest, ok := strings.CutPrefix(entry, name+"="); ok {
				text = rest
			}
		}
		return text
	}
	name := value("TERM")
	if name == "" || strings.ContainsRune(name, '/') {
		return nil
	}
	places := terminfoPlaces
	if own := value("TERMINFO"); own != "" {
		places = append([]string{own}, places...)
	}
	for _, place := range places {
		for _, folder := range []string{name[:1], fmt.Sprintf("%02x", name[0])} {
			path := filepath.Join(place, folder, name)
			if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
				return []string{path}
			}
		}
	}
	return nil
}
