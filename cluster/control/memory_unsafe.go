package control

import "unsafe"

// memoryOf returns the bytes of a value of type T, without what it points to.
func memoryOf[T any]() int {
	var v T
	return int(unsafe.Sizeof(v))
}
