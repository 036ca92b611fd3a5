// Package progress reports how far work is that takes a while, such as a download, to the part that shows it to the user.
package progress

// Step is one report. Steps with the same Text describe the same work.
type Step struct {
	Text        string
	Done, Total int64 // bytes; Total is 0 where no amount is known
}

// Func receives each step, from one goroutine at a time. A nil Func is valid and discards all.
type Func func(Step)

// Report passes s on.
func (f Func) Report(s Step) {
	if f != nil {
		f(s)
	}
}
