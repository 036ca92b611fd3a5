package launch

import (
	"bytes"
	"context"
	"fmt"
	"io"

	"margay/cluster/control"
)

// maxLine is how much of a line without an end is held back, in bytes.
const maxLine = 64 << 10

// printer writes what ranks say. With several ranks it keeps lines whole, however they come; the output of a single one is
// written as it comes.
type printer struct {
	out, err io.Writer
	whole    bool // keep lines whole
	label    bool // begin each line with its rank
	pending  map[source][]byte
}

type source struct {
	rank   uint32
	stream control.Stream
}

func newPrinter(out, err io.Writer, ranks int, label bool) *printer {
	return &printer{out: out, err: err, whole: ranks > 1 || label, label: label, pending: make(map[source][]byte)}
}

// print writes the output that a record brings.
func (p *printer) print(r *control.Record) error {
	if r.Stream == control.Stream_STREAM_EXIT {
		return p.flush(r.Rank)
	}
	if !p.whole {
		_, err := p.writer(r.Stream).Write(r.Data)
		return err
	}
	from := source{r.Rank, r.Stream}
	data := append(p.pending[from], r.Data...)
	var lines []byte
	for {
		end := bytes.IndexByte(data, '\n') + 1
		if end == 0 && len(data) > maxLine {
			end = maxLine
		}
		if end == 0 {
			break
		}
		lines = append(append(lines, p.prefix(r.Rank)...), data[:end]...)
		data = data[end:]
	}
	p.pending[from] = append([]byte(nil), data...)
	return p.write(r.Stream, lines)
}

// flush writes what a rank has left behind without a line's end, and the end that is missing.
func (p *printer) flush(rank uint32) error {
	for _, stream := range []control.Stream{control.Stream_STREAM_STDOUT, control.Stream_STREAM_STDERR} {
		from := source{rank, stream}
		if rest := p.pending[from]; len(rest) > 0 {
			if err := p.write(stream, fmt.Appendf(nil, "%s%s\n", p.prefix(rank), rest)); err != nil {
				return err
			}
		}
		delete(p.pending, from)
	}
	return nil
}

func (p *printer) prefix(rank uint32) string {
	if !p.label {
		return ""
	}
	return fmt.Sprintf("[%d] ", rank)
}

func (p *printer) write(stream control.Stream, data []byte) error {
	if len(data) == 0 {
		return nil
	}
	_, err := p.writer(stream).Write(data)
	return err
}

func (p *printer) writer(stream control.Stream) io.Writer {
	if stream == control.Stream_STREAM_STDERR {
		return p.err
	}
	return p.out
}

// Replay prints the output of a detached job, from its beginning to its end.
func Replay(ctx context.Context, conn *control.Conn, job uint32, label bool, stdout, stderr io.Writer) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var p *printer
	go conn.Serve(func(f *control.Frame) {
		if r := f.GetRecord(); r != nil {
			if err := p.print(r); err != nil {
				cancel(fmt.Errorf("write output: %w", err))
			}
		}
	})
	answer, err := conn.Call(ctx, &control.ListJobs{Job: job})
	if err != nil {
		return err
	}
	jobs, ok := answer.(*control.Jobs)
	if !ok || len(jobs.Jobs) != 1 {
		return fmt.Errorf("serve answered ListJobs with %T", answer)
	}
	p = newPrinter(stdout, stderr, int(jobs.Jobs[0].Ranks), label)
	_, err = conn.Call(ctx, &control.Attach{Job: job, Output: true})
	return err
}
