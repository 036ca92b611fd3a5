package nimble

import (
	"fmt"

	"golang.org/x/time/rate"
)

// An extension may print printBurst lines at once and printRate lines a second.
const (
	printBurst = 20
	printRate  = 10
)

// printer passes on what an extension prints, unless that is too much.
type printer struct {
	to         func(line string)
	limiter    *rate.Limiter
	suppressed int
}

func newPrinter(to func(line string)) *printer {
	return &printer{to: to, limiter: rate.NewLimiter(printRate, printBurst)}
}

// print passes a line on, or counts it. The caller holds Extension.running.
func (p *printer) print(line string) {
	if !p.limiter.Allow() {
		p.suppressed++
		return
	}
	if p.suppressed > 0 {
		line = fmt.Sprintf("%s (%d lines before this were too many)", line, p.suppressed)
		p.suppressed = 0
	}
	p.to(line)
}
