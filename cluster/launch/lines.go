package launch

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"margay/cluster/control"
	"margay/internal/nodeset"
)

// Bounds for unfinished lines in memory, in bytes. The rest goes to files.
const (
	holdLimit = 64 << 20 // of all lines together
	holdPiece = 64 << 10 // a line of fewer bytes stays in memory
)

// printer writes what ranks say. With several ranks it keeps lines whole, however long they are and
// however they come; the output of a single one is written as it comes.
type printer struct {
	out, err io.Writer
	own      func(source) io.Writer // takes the output of one stream of a rank, as it comes; nil: out and err do
	files    redirects
	whole    bool // keep lines whole
	label    Label
	task     string     // of an array, for labels; empty: the job is none
	single   bool       // the task has one rank, which labels do not name
	collapse *collapser // equal lines of ranks are written once; nil: all are written
	lines    map[source]*line
	held     int // bytes of lines in memory
	limit    int // of held
}

type source struct {
	rank   uint32
	stream control.Stream
}

// line is an unfinished line: first its part in the file, then its part in memory.
type line struct {
	node   uint32
	file   *os.File // has no name any more; nil while nothing is in it
	memory []byte
}

func newPrinter(out, err io.Writer, ranks int, label Label) *printer {
	return &printer{out: out, err: err, whole: ranks > 1 || label != NoLabel, label: label, lines: make(map[source]*line), limit: holdLimit}
}

// print writes the output that a record brings.
func (p *printer) print(r *control.Record) error {
	switch {
	case r.Stream == control.Stream_STREAM_EXIT && !r.Open:
		if err := p.flush(func(from source, _ *line) bool { return from.rank == r.Rank }); err != nil {
			return err
		}
		if p.collapse != nil {
			p.collapse.ended(r.Rank)
		}
	case len(r.Data) > 0 && p.own != nil:
		if _, err := p.own(source{r.Rank, r.Stream}).Write(r.Data); err != nil {
			return err
		}
	case len(r.Data) > 0 && (!p.whole || p.label == NoLabel && p.files.alone(r.Stream)):
		if _, err := p.writer(source{r.Rank, r.Stream}).Write(r.Data); err != nil {
			return err
		}
	case len(r.Data) > 0:
		if err := p.add(r); err != nil {
			return err
		}
	}
	if r.Last {
		return p.flush(func(_ source, l *line) bool { return l.node == r.Node })
	}
	return nil
}

// finish writes the remaining unfinished lines and closes the output files.
func (p *printer) finish() error {
	err := p.flush(func(source, *line) bool { return true })
	if p.collapse != nil {
		err = errors.Join(err, p.writeGroups(p.collapse.all()))
	}
	return errors.Join(err, p.files.close())
}

// add writes the lines that a record ends, and holds the one that it begins.
func (p *printer) add(r *control.Record) error {
	from := source{r.Rank, r.Stream}
	last := bytes.LastIndexByte(r.Data, '\n') + 1
	if last > 0 {
		first := 0
		if p.lines[from] != nil {
			first = bytes.IndexByte(r.Data, '\n') + 1
			if err := p.end(from, r.Data[:first]); err != nil {
				return err
			}
		}
		if err := p.writeLines(from, r.Node, r.Data[first:last]); err != nil {
			return err
		}
	}
	if last == len(r.Data) {
		return nil
	}
	l := p.lines[from]
	if l == nil {
		l = &line{node: r.Node}
		p.lines[from] = l
	}
	l.memory = append(l.memory, r.Data[last:]...)
	p.held += len(r.Data) - last
	if p.held <= p.limit || len(l.memory) < holdPiece {
		return nil
	}
	return p.spill(from, l)
}

// spill moves the part of a line in memory to its file.
func (p *printer) spill(from source, l *line) error {
	err := l.spill()
	if err != nil {
		return fmt.Errorf("keep a long line of rank %d whole: %w", from.rank, err)
	}
	p.held -= len(l.memory)
	l.memory = nil
	return nil
}

func (l *line) spill() (err error) {
	if l.file == nil {
		if l.file, err = os.CreateTemp("", "margay-line-"); err != nil {
			return err
		}
		if err := os.Remove(l.file.Name()); err != nil {
			return err
		}
	}
	_, err = l.file.Write(l.memory)
	return err
}

// end writes the line that a source has begun, and the rest of it.
func (p *printer) end(from source, rest []byte) error {
	l := p.lines[from]
	delete(p.lines, from)
	p.held -= len(l.memory)
	if l.file == nil {
		return p.writeLines(from, l.node, slices.Concat(l.memory, rest))
	}
	defer func() { l.file.Close() }()
	begin := []byte(p.prefix(from.rank, l.node))
	if p.collapse != nil {
		if err := p.writeGroups(p.collapse.all()); err != nil {
			return err
		}
		begin = fmt.Appendf(nil, "[%d] ", from.rank)
	}
	if err := p.write(from, begin); err != nil {
		return err
	}
	if _, err := l.file.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("read a long line of rank %d: %w", from.rank, err)
	}
	if w, ok := p.writer(from).(interface{ take(*os.File) }); ok {
		w.take(l.file)
		l.file = nil
	} else if _, err := io.Copy(p.writer(from), l.file); err != nil {
		return err
	}
	return p.write(from, slices.Concat(l.memory, rest))
}

// flush writes an unfinished line and its missing end.
func (p *printer) flush(which func(source, *line) bool) error {
	var left []source
	for from, l := range p.lines {
		if which(from, l) {
			left = append(left, from)
		}
	}
	slices.SortFunc(left, func(a, b source) int {
		if a.rank != b.rank {
			return int(a.rank) - int(b.rank)
		}
		return int(a.stream) - int(b.stream)
	})
	for _, from := range left {
		if err := p.end(from, []byte("\n")); err != nil {
			return err
		}
	}
	return nil
}

// writeLines writes whole lines of a rank.
func (p *printer) writeLines(from source, node uint32, lines []byte) error {
	switch {
	case p.collapse != nil:
		for line := range bytes.Lines(lines) {
			if err := p.writeGroups(p.collapse.add(from, line, time.Now())); err != nil {
				return err
			}
		}
		return nil
	case p.label == NoLabel:
		return p.write(from, lines)
	}
	var out []byte
	for line := range bytes.Lines(lines) {
		out = append(append(out, p.prefix(from.rank, node)...), line...)
	}
	return p.write(from, out)
}

// writeGroups writes each of some lines once, with the ranks that have written it.
func (p *printer) writeGroups(groups []*group) error {
	for _, g := range groups {
		if err := p.write(source{g.ranks[0], g.stream}, fmt.Appendf(nil, "[%s] %s", nodeset.Ranges(g.ranks), g.text)); err != nil {
			return err
		}
	}
	return nil
}

// tick writes the lines that have waited long enough for others that are equal.
func (p *printer) tick(now time.Time) error {
	if p.collapse == nil {
		return nil
	}
	return p.writeGroups(p.collapse.due(now))
}

// Label says how lines of output begin.
type Label int

// The labels.
const (
	NoLabel Label = iota
	ByRank        // [3]
	ByHost        // [node1]
	ByBoth        // [node1 3]
)

func (p *printer) prefix(rank, node uint32) string {
	task := p.task
	if task != "" {
		task += " "
	}
	switch p.label {
	case ByRank:
		if p.single {
			return "[" + p.task + "] "
		}
		return fmt.Sprintf("[%s%d] ", task, rank)
	case ByHost:
		return fmt.Sprintf("[%snode%d] ", task, node)
	case ByBoth:
		return fmt.Sprintf("[%snode%d %d] ", task, node, rank)
	}
	return ""
}

func (p *printer) write(to source, data []byte) error {
	if len(data) == 0 {
		return nil
	}
	_, err := p.writer(to).Write(data)
	return err
}

func (p *printer) writer(of source) io.Writer {
	if f := p.files.of(of); f != nil {
		return f
	}
	if of.stream == control.Stream_STREAM_STDERR {
		return p.err
	}
	return p.out
}
