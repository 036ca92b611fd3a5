package peer

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"margay/tools/margay/bench/fabric"
)

// Sockets returns the contenders that use plain sockets between the two ranks of a place. network
// is nil for loopback.
func Sockets(program string, network *Network) []fabric.Contender {
	var all []fabric.Contender
	for _, protocol := range []string{"udp", "tcp"} {
		for _, waiting := range []string{"poll", "block"} {
			s := sockets{program, protocol, waiting, network}
			all = append(all, fabric.Contender{Name: strings.ToUpper(protocol) + " " + waiting, Run: s.run})
		}
	}
	return all
}

type sockets struct {
	program, protocol, waiting string
	network                    *Network
}

// argv is the command line of one of the two processes.
func (s sockets) argv(rank int, role, address string, rest []string) []string {
	argv := []string{s.program, s.protocol, s.waiting, role, address}
	if s.network != nil {
		argv = append(s.network.Enter(rank), argv...)
	}
	return append(argv, rest...)
}

// run starts rank 1, which prints its port, and then rank 0.
func (s sockets) run(ctx context.Context, c fabric.Case, length time.Duration) (*fabric.Report, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // rank 1 ends when rank 0 has failed
	host := "127.0.0.1"
	if s.network != nil {
		host = address(1).String()
	}
	listener := command(ctx, s.argv(1, "listen", host, measurement(c, length))...)
	out, err := listener.StdoutPipe()
	if err != nil {
		return nil, err
	}
	var failure strings.Builder
	listener.Stderr = &failure
	if err := listener.Start(); err != nil {
		return nil, err
	}
	port, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		cancel()
		return nil, failed(listener, errors.Join(err, listener.Wait()), failure.String())
	}
	r, err := report(command(ctx, s.argv(0, "connect", fmt.Sprintf("%s:%s", host, strings.TrimSpace(port)), measurement(c, length))...))
	if err != nil {
		cancel()
	}
	if ended := listener.Wait(); err == nil && ended != nil {
		err = failed(listener, ended, failure.String())
	}
	return r, err
}
