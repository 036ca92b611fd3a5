package service

import (
	"encoding/binary"
	"math/rand/v2"

	"golang.org/x/sys/unix"

	"margay/internal/clock"
)

// Linux returns the services that Linux has under the same numbers
// (linux/bpf.h, enum bpf_func_id), with the same arguments and results for the
// kinds of map that exist here.
func Linux() []Service {
	return []Service{
		{Number: 1, Name: "map_lookup_elem", Args: []Kind{Handle, Key}, Element: true, Func: mapLookup},
		{Number: 2, Name: "map_update_elem", Args: []Kind{Handle, Key, Value, Scalar}, Func: mapUpdate},
		{Number: 3, Name: "map_delete_elem", Args: []Kind{Handle, Key}, Func: mapDelete},
		{Number: 5, Name: "ktime_get_ns", Func: monotonic},
		{Number: 6, Name: "trace_printk", Args: []Kind{Readable, Length, Scalar, Scalar, Scalar}, Func: tracePrintk},
		{Number: 7, Name: "get_prandom_u32", Func: random},
		{Number: 8, Name: "get_smp_processor_id", Func: core},
	}
}

// Errno is how a service returns an error code of Linux.
func Errno(e unix.Errno) uint64 { return -uint64(e) }

// mapLookup returns the address of an element as the call's core sees it, or 0.
func mapLookup(c *Call) (uint64, error) {
	addr, ok := c.Map(0).Element(c.Core, binary.LittleEndian.Uint32(c.Bytes(1)))
	if !ok {
		return 0, nil
	}
	return addr, nil
}

// Flags of map_update_elem (linux/bpf.h).
const (
	updateNoExist = 1
	updateExist   = 2
)

// mapUpdate copies a value into an element. Elements of arrays always exist.
func mapUpdate(c *Call) (uint64, error) {
	m := c.Map(0)
	to, ok := m.Value(c.Core, binary.LittleEndian.Uint32(c.Bytes(1)))
	switch flags := c.Args[3]; {
	case flags > updateExist:
		return Errno(unix.EINVAL), nil
	case !ok:
		return Errno(unix.E2BIG), nil
	case flags == updateNoExist:
		return Errno(unix.EEXIST), nil
	case !m.Region().Writable:
		return Errno(unix.EPERM), nil
	}
	copy(to, c.Bytes(2))
	return 0, nil
}

// mapDelete fails: elements of arrays cannot be deleted.
func mapDelete(*Call) (uint64, error) { return Errno(unix.EINVAL), nil }

func monotonic(*Call) (uint64, error) { return clock.Monotonic(), nil }

func random(*Call) (uint64, error) { return uint64(rand.Uint32()), nil }

func core(c *Call) (uint64, error) { return uint64(uint32(c.Core)), nil }
