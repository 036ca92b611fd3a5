package collective

import "unsafe"

// aligned returns memory that is aligned for elements of any type.
func aligned(size int) []byte {
	words := make([]uint64, (size+7)/8)
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(words))), size)
}
