//go:build !(linux && amd64)

package subroutine

import (
	"fmt"
	"runtime"

	"margay/nimble/engine"
)

func newEngine(bool) (engine.Engine, error) {
	return nil, fmt.Errorf("subroutine: machine code is made for linux/amd64 only, this is %s/%s", runtime.GOOS, runtime.GOARCH)
}
