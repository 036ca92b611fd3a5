package qemu

import (
	"os"
	"regexp"
	"sync"
)

// counter returns the processor's time-stamp counter.
func counter() uint64

var constantRate = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?m)^flags\s*:.*\sconstant_tsc\s`) })

// tickRate returns the rate of the counter in kHz, 0 when it is not constant.
var tickRate = sync.OnceValue(func() uint64 {
	if text, err := os.ReadFile("/proc/cpuinfo"); err != nil || !constantRate().Match(text) {
		return 0
	}
	return measure(counter)
})
