// Package procname names this process for ps and top. Programs here start each other as
// /proc/self/exe, so Linux would call all of them exe.
package procname

import (
	"fmt"
	"os"
)

// Set names this process. Linux keeps the first 15 bytes.
func Set(name string) error {
	if err := os.WriteFile("/proc/self/comm", []byte(name), 0); err != nil {
		return fmt.Errorf("name this process %s: %w", name, err)
	}
	return nil
}
