package agent

import (
	"context"

	"margay/cluster/control"
	"margay/kernel/abi/id"
)

// debugRank opens a stream to serve for the debugger of a rank. It is carried until it ends, or ctx
// with the connection to serve.
func (a *Agent) debugRank(ctx, dialing context.Context, m *control.DebugRank) error {
	stream, err := a.dialStream(dialing, &control.Hello{Role: control.Role_ROLE_DEBUG, Stream: m.Stream})
	if err != nil {
		return err
	}
	go func() { a.ignore(a.node.Debug(ctx, id.Job(m.Job), id.Rank(m.Rank), stream)) }()
	return nil
}
