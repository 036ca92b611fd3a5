// Package progress reports the progress of long operations, such as downloads, to the user
// interface.
package progress

// Step is one report. Steps with the same Text describe the same work.
type Step struct {
	Text        string
	Done, Total int64 // bytes; Total is 0 if it is unknown
}

// Func receives each step, from one goroutine at a time. A nil Func is valid and discards all
// steps.
type Func func(Step)

// Report passes s on.
func (f Func) Report(s Step) {
	if f != nil {
		f(s)
	}
}
