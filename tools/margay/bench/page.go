package bench

import (
	"bytes"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"margay/tools/margay/bench/page"
)

// intoPage replaces the figures that a command has written into a page. Without a function that
// writes them it only checks that it can.
func intoPage(path, command string, markdown func(io.Writer) error) error {
	old, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var text bytes.Buffer
	if markdown != nil {
		if err := markdown(&text); err != nil {
			return err
		}
	}
	changed, err := page.Insert(string(old), command, text.String())
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if markdown == nil {
		return unix.Access(path, unix.W_OK)
	}
	return os.WriteFile(path, []byte(changed), 0o644)
}
