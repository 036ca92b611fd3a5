// Package jobs starts jobs on a machine from any program of its host, and follows them. It is the
// library of programs outside of jobs; package margay is the one of ranks.
//
//	machine, err := jobs.Connect(ctx, "")
//	program, err := jobs.Load("./work")
//	job, err := machine.Start(ctx, jobs.Spec{Program: program, Args: []string{"17"}, Ranks: 8, Wait: jobs.Forever, Stdout: os.Stdout})
//	result, err := job.Wait()
//
// All jobs of a Machine share one connection to its serve, and thousands may wait or run at a time.
// A job is what margay run starts: its program is copied to the nodes with its libraries, and its
// ranks have cores of their own. It ends with the program that has started it, or with the context
// of Start, unless it is detached. If serve is restarted, jobs go on.
//
// Everything here is safe for concurrent use. A rank cannot use this package: a node gives the
// programs on it no connection to serve.
//
// Names of machines and the variables MARGAY_DIR and MARGAY_MACHINE mean what they do to the
// command margay. This program and the machine must be of one build of Margay.
package jobs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"google.golang.org/protobuf/proto"

	"margay/cluster/client"
	"margay/cluster/control"
	"margay/cluster/launch"
	"margay/cluster/site"
)

// Errors that programs may act upon. They are found with errors.Is.
var (
	ErrDown    = errors.New("the machine is not up")
	ErrNoCores = errors.New("not enough free cores")
	ErrNoJob   = errors.New("no such job")
	ErrClosed  = launch.ErrClosed // the Machine was closed
)

// connectTimeout bounds how long Connect waits for a serve that is just starting, and answerTimeout
// how long a question may take.
const (
	connectTimeout = 20 * time.Second
	answerTimeout  = 10 * time.Second
)

// Machine is a connection to a machine.
type Machine struct {
	name string
	link *launch.Link
}

// Connect connects to the machine of a name. An empty name stands for MARGAY_MACHINE, or default.
// The error is ErrDown if there is none.
func Connect(ctx context.Context, name string) (*Machine, error) {
	name = cmp.Or(name, os.Getenv(site.MachineVariable), site.DefaultName)
	if os.Getenv(rankVariable) != "" {
		return nil, errors.New("a rank cannot start jobs: nodes give no connection to serve to the programs on them")
	}
	folder, err := site.Folder(name)
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(folder); err != nil {
		return nil, fmt.Errorf("%w: %s; margay machine up -m %s makes it", ErrDown, err, name)
	}
	m := &Machine{name: name, link: launch.NewLink(site.Socket(folder))}
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	if _, err := look[*control.MachineStatus](ctx, m, &control.Status{}); err != nil {
		m.Close()
		return nil, fmt.Errorf("machine %s: %w", name, err)
	}
	return m, nil
}

// Close ends the connection, and with it all jobs that this Machine has started, but for detached
// ones that run.
func (m *Machine) Close() { m.link.Close() }

// ask makes one request.
func ask[Answer proto.Message](ctx context.Context, m *Machine, request proto.Message) (Answer, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, answerTimeout, fmt.Errorf("serve has not answered for %v", answerTimeout))
	defer cancel()
	answer, err := m.link.Call(ctx, request)
	if errors.Is(err, &control.Failure{Code: control.Code_CODE_NOT_FOUND}) {
		err = coded{err, ErrNoJob}
	}
	if err != nil {
		var none Answer
		return none, known(err)
	}
	a, ok := answer.(Answer)
	if !ok {
		return a, fmt.Errorf("serve answered %T with %T", request, answer)
	}
	return a, nil
}

// lookTries is how often look asks.
const lookTries = 3

// look is ask for a question that changes nothing: it is repeated if serve is restarted.
func look[Answer proto.Message](ctx context.Context, m *Machine, request proto.Message) (Answer, error) {
	for try := 1; ; try++ {
		answer, err := ask[Answer](ctx, m, request)
		if !errors.Is(err, launch.ErrLost) || try == lookTries {
			return answer, err
		}
	}
}

// known makes an error one that programs may act upon, if it is.
func known(err error) error {
	var f *control.Failure
	switch {
	case errors.Is(err, client.ErrNoServe):
		return coded{err, ErrDown}
	case !errors.As(err, &f):
		return err
	case f.Code == control.Code_CODE_DOWN:
		return coded{err, ErrDown}
	case f.Code == control.Code_CODE_NO_ROOM:
		return coded{err, ErrNoCores}
	}
	return err
}

// coded is an error that is also another one, without its text.
type coded struct {
	error
	is error
}

func (c coded) Unwrap() []error { return []error{c.error, c.is} }
