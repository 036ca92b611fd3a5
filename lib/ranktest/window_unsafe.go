package ranktest

import (
	"sync/atomic"
	"unsafe"
)

// wordOf returns the word at the beginning of memory, which is aligned.
func wordOf(memory []byte) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(unsafe.SliceData(memory)))
}
