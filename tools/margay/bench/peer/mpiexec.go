package peer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"
)

// MPIExec is MPICH's launcher, with ranks on this host.
type MPIExec struct {
	Words []string // the command, such as mpiexec.mpich
	TCP   bool     // ranks use TCP, as if each were on a host of its own; otherwise shared memory
}

// Run runs a program with so many ranks, and returns what they have printed, and how long that has
// taken. Whatever is left after the limit is ended. Any number of runs may go on at once.
func (m MPIExec) Run(ctx context.Context, limit time.Duration, ranks int, argv []string) (output string, took time.Duration, err error) {
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	cmd := command(limited, append(append(m.Words[:len(m.Words):len(m.Words)], "-n", fmt.Sprint(ranks)), argv...)...)
	cmd.Env = os.Environ()
	if m.TCP {
		cmd.Env = append(append(cmd.Env, overTCP...), "UCX_NET_DEVICES=lo")
	}
	begun := time.Now()
	output, err = run(cmd)
	took = time.Since(begun)
	if errors.Is(limited.Err(), context.DeadlineExceeded) && ctx.Err() == nil {
		return "", 0, fmt.Errorf("%s: it had not ended after %v", strings.Join(m.Words, " "), limit)
	}
	return output, took, err
}
