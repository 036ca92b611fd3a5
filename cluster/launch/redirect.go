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
	task     *control.Task       // the job is this one of an array; nil: it is none
	single   bool                // the task has one rank
	shared   map[string]bool     // files that tasks of the array have created; nil: each job creates its own
	files    map[string]*os.File // by name
	names    map[source]string
}

// CheckPattern refuses the pattern of a file name that has a % with a letter that means nothing.
// Some letters have a meaning for the tasks of arrays only.
func CheckPattern(pattern string, array bool) error {
	letters, what := "jrn%", ""
	if array {
		letters, what = "jrnaA%", "a (the task), A (the array), "
	}
	for i := 0; i < len(pattern); i++ {
		if pattern[i] != '%' {
			continue
		}
		if i++; i == len(pattern) || !strings.ContainsRune(letters, rune(pattern[i])) {
			return fmt.Errorf("after %% comes %sj (the job), r (the rank), n (the node), or %% for itself", what)
		}
	}
	return nil
}

// expand puts the numbers of a job, a rank and a node into a pattern. For a task, which may be nil,
// it also puts in the numbers of the task and its array.
func expand(pattern string, job uint32, task *control.Task, p *control.Place) string {
	number := func(n uint32) string { return strconv.FormatUint(uint64(n), 10) }
	pairs := []string{"%%", "%", "%j", number(job), "%r", number(p.Rank), "%n", number(p.Node)}
	if task != nil {
		pairs = append(pairs, "%a", number(task.Id), "%A", number(task.Array))
	}
	return strings.NewReplacer(pairs...).Replace(pattern)
}

// ofTask reports whether a pattern gives each task of an array files of its own.
func ofTask(pattern string) bool {
	pattern = strings.ReplaceAll(pattern, "%%", "")
	return strings.Contains(pattern, "%a") || strings.Contains(pattern, "%j")
}

// open creates the files of all ranks, before the first of them runs.
func (r *redirects) open(job uint32, places []*control.Place) error {
	r.files, r.names = make(map[string]*os.File), make(map[source]string)
	for _, p := range places {
		for stream, pattern := range map[control.Stream]string{control.Stream_STREAM_STDOUT: r.out, control.Stream_STREAM_STDERR: r.err} {
			if pattern == "" {
				continue
			}
			name := expand(pattern, job, r.task, p)
			r.names[source{p.Rank, stream}] = name
			if r.files[name] != nil {
				continue
			}
			f, err := r.create(name, pattern)
			if err != nil {
				return errors.Join(fmt.Errorf("output of rank %d: %w", p.Rank, err), r.close())
			}
			r.files[name] = f
		}
	}
	return nil
}

// create creates a file, or opens one that an earlier task of the same array has created.
func (r *redirects) create(name, pattern string) (*os.File, error) {
	if r.shared == nil || ofTask(pattern) {
		return os.Create(name)
	}
	how := os.O_WRONLY | os.O_CREATE | os.O_APPEND
	if !r.shared[name] {
		how |= os.O_TRUNC
	}
	f, err := os.OpenFile(name, how, 0o666)
	r.shared[name] = r.shared[name] || err == nil
	return f, err
}

// of returns the file that takes what a rank writes to a stream, or nil.
func (r *redirects) of(from source) io.Writer {
	if f := r.files[r.names[from]]; f != nil {
		return f
	}
	return nil
}

// alone reports whether a rank has a file of its own for a stream, which takes its output byte for
// byte. Tasks of an array may share the files of their ranks.
func (r *redirects) alone(stream control.Stream) bool {
	pattern := r.out
	if stream == control.Stream_STREAM_STDERR {
		pattern = r.err
	}
	ofRank := strings.Contains(strings.ReplaceAll(pattern, "%%", ""), "%r")
	if r.task == nil {
		return ofRank
	}
	return ofTask(pattern) && (ofRank || r.single)
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
