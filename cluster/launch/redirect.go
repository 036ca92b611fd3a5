package launch

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"margay/cluster/control"
)

// redirects are the files that take the output of ranks instead of the standard streams, by the
// patterns of their names.
type redirects struct {
	out, err string              // patterns; empty: the standard stream
	files    map[string]*os.File // by name
	names    map[source]string
}

// CheckPattern refuses the pattern of a file name that has a % with a letter that means nothing.
func CheckPattern(pattern string) error {
	for i := 0; i < len(pattern); i++ {
		if pattern[i] != '%' {
			continue
		}
		if i++; i == len(pattern) || !strings.ContainsRune("jrn%", rune(pattern[i])) {
			return errors.New("after % comes j (the job), r (the rank), n (the node), or % for itself")
		}
	}
	return nil
}

// expand puts the numbers of a job, a rank and a node into a pattern.
func expand(pattern string, job uint32, p *control.Place) string {
	number := func(n uint32) string { return strconv.FormatUint(uint64(n), 10) }
	return strings.NewReplacer("%%", "%", "%j", number(job), "%r", number(p.Rank), "%n", number(p.Node)).Replace(pattern)
}

// open creates the files of all ranks, before the first of them runs.
func (r *redirects) open(job uint32, places []*control.Place) error {
	r.files, r.names = make(map[string]*os.File), make(map[source]string)
	for _, p := range places {
		for stream, pattern := range map[control.Stream]string{control.Stream_STREAM_STDOUT: r.out, control.Stream_STREAM_STDERR: r.err} {
			if pattern == "" {
				continue
			}
			name := expand(pattern, job, p)
			r.names[source{p.Rank, stream}] = name
			if r.files[name] != nil {
				continue
			}
			f, err := os.Create(name)
			if err != nil {
				return errors.Join(fmt.Errorf("output of rank %d: %w", p.Rank, err), r.close())
			}
			r.files[name] = f
		}
	}
	return nil
}

// of returns the file that takes what a rank writes to a stream, or nil.
func (r *redirects) of(from source) io.Writer {
	if f := r.files[r.names[from]]; f != nil {
		return f
	}
	return nil
}

// alone reports whether a rank has a file of its own for a stream, which takes its output byte for
// byte.
func (r *redirects) alone(stream control.Stream) bool {
	pattern := r.out
	if stream == control.Stream_STREAM_STDERR {
		pattern = r.err
	}
	return strings.Contains(strings.ReplaceAll(pattern, "%%", ""), "%r")
}

// close closes the files. An error, as of a full disk that shows late, names the file.
func (r *redirects) close() error {
	var all error
	for name, f := range r.files {
		all = errors.Join(all, f.Close())
		delete(r.files, name)
	}
	return all
}
