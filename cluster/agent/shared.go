package agent

import (
	"context"
	"crypto/tls"
	"net"
	"slices"
	"time"

	"margay/cluster/control"
	"margay/kernel"
	"margay/kernel/abi/id"
)

// shareFiles keeps a stream of the files that a job's client shares with the ranks open, while the
// job is here and until ctx ends. It belongs to one connection to serve, so it ends with a serve
// that is silent. serve has room for one stream of a job, so a second call of one connection does
// nothing.
func (a *Agent) shareFiles(ctx context.Context, job id.Job) {
	a.mu.Lock()
	running := a.sharing[job] == ctx
	a.sharing[job] = ctx
	a.mu.Unlock()
	if running {
		return
	}
	defer func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.sharing[job] == ctx {
			delete(a.sharing, job)
		}
	}()
	for retry := firstRetry; a.has(job); retry = min(2*retry, lastRetry) {
		begun := time.Now()
		stream, err := a.dialStream(ctx, &control.Hello{Role: control.Role_ROLE_FILES, Job: uint32(job)})
		if err == nil {
			_ = a.node.Share(ctx, job, stream) // whatever has ended it, there is another one
		}
		if time.Since(begun) > silence {
			retry = firstRetry
		}
		select {
		case <-time.After(retry):
		case <-ctx.Done():
			return
		}
	}
}

// has reports whether a job is on this node.
func (a *Agent) has(job id.Job) bool {
	return slices.ContainsFunc(a.node.Jobs(), func(j kernel.JobInfo) bool { return j.Job == job })
}

// dialStream opens this node's side of a stream. hello names its role, and its job or number.
func (a *Agent) dialStream(ctx context.Context, hello *control.Hello) (net.Conn, error) {
	dialing, done := context.WithTimeout(ctx, control.HelloTimeout)
	defer done()
	dialer := tls.Dialer{Config: a.serve}
	raw, err := dialer.DialContext(dialing, "tcp", a.config.Boot.Serve)
	if err != nil {
		return nil, err
	}
	conn := control.NewConn(raw)
	defer context.AfterFunc(dialing, conn.Close)()
	hello.Version, hello.Token, hello.Node, hello.Program = a.config.Protocol, a.config.Boot.Token, a.self(), a.config.Boot.Hostname()
	if _, err := conn.Greet(hello); err != nil {
		conn.Close()
		return nil, err
	}
	return conn.Stream(), nil
}
