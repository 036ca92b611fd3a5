//go:build !amd64 && !arm64

package direct

import (
	"fmt"
	"runtime"

	"margay/nimble/engine"
)

func newEngine() (engine.Engine, error) {
	return nil, fmt.Errorf("direct: handlers are written for amd64 and arm64 only, this is %s", runtime.GOARCH)
}
