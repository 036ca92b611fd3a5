package service

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"margay/nimble/memory"
	"margay/nimble/state"
)

// space is a Space of one region.
type space memory.Region

func (s space) View(addr, length uint64, write bool) ([]byte, bool) {
	r := memory.Region(s)
	if !r.Contains(addr, length) || write && !r.Writable {
		return nil, false
	}
	return memory.View(addr, length), true
}

// newCall returns a call with 64 bytes of memory at the returned address and an
// array of 4 values of 8 bytes as map 0.
func newCall(t *testing.T, spec state.Spec) (*Call, []byte, uint64) {
	t.Helper()
	mem, err := memory.Map("memory", 64)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { mem.Close() })
	m, err := state.New(spec, state.Options{Cores: 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	region := mem.Region(true)
	return &Call{Space: space(region), Maps: []*state.Map{m}}, mem.Bytes(), region.Base
}

var array = state.Spec{Name: "array", ValueSize: 8, Entries: 4}

func TestAll(t *testing.T) {
	nothing := func(*Call) (uint64, error) { return 0, nil }
	table, err := NewTable(Service{Name: "zeta", Func: nothing}, Service{Number: 12, Func: nothing}, Service{Number: 3, Name: "three", Func: nothing},
		Service{Name: "alpha", Func: nothing})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := table.All(), "there are 3 three, 12, alpha, zeta"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := (*Table)(nil).All(); got != "there are none" {
		t.Errorf("of no table: %q", got)
	}
}

func TestNewTableRefuses(t *testing.T) {
	f := func(*Call) (uint64, error) { return 0, nil }
	for name, list := range map[string][]Service{
		"neither number nor name":      {{Func: f}},
		"number too large":             {{Number: 4096, Func: f}},
		"negative number":              {{Number: -1, Func: f}},
		"no function":                  {{Number: 1}},
		"six arguments":                {{Number: 1, Args: make([]Kind, 6), Func: f}},
		"unknown kind":                 {{Number: 1, Args: []Kind{99}, Func: f}},
		"pointer without length":       {{Number: 1, Args: []Kind{Readable}, Func: f}},
		"pointer followed by a scalar": {{Number: 1, Args: []Kind{Writable, Scalar}, Func: f}},
		"length without pointer":       {{Number: 1, Args: []Kind{Length}, Func: f}},
		"key without map":              {{Number: 1, Args: []Kind{Key}, Func: f}},
		"value without map":            {{Number: 1, Args: []Kind{Value, Handle}, Func: f}},
		"same number":                  {{Number: 1, Func: f}, {Number: 1, Name: "x", Func: f}},
		"same name":                    {{Number: 1, Name: "x", Func: f}, {Name: "x", Func: f}},
	} {
		if _, err := NewTable(list...); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestTable(t *testing.T) {
	f := func(*Call) (uint64, error) { return 0, nil }
	table, err := NewTable(Service{Number: 1, Func: f}, Service{Number: 2, Name: "two", Func: f}, Service{Name: "named", Func: f})
	if err != nil {
		t.Fatal(err)
	}
	if table.Number(2) == nil || table.Name("two") != table.Number(2) || table.Name("named") == nil {
		t.Error("a service is missing")
	}
	if table.Number(0) != nil || table.Number(3) != nil || table.Name("") != nil {
		t.Error("a service that nobody declared")
	}
	if (*Table)(nil).Number(1) != nil || (*Table)(nil).Name("two") != nil {
		t.Error("the nil table is not empty")
	}
	if table.Number(1).String() != "1" || table.Number(2).String() != "two" {
		t.Error("wrong strings")
	}
}

// declared returns a service of a table that has no other.
func declared(t *testing.T, s Service) *Service {
	t.Helper()
	table, err := NewTable(s)
	if err != nil {
		t.Fatal(err)
	}
	return table.Name(s.Name)
}

// TestArguments runs one service of each kind of argument against good and bad
// values: a bad one is refused with its number, and the service does not run.
func TestArguments(t *testing.T) {
	c, _, base := newCall(t, array)
	readOnly := space(memory.Region{Base: base, Length: 64, Readable: true})
	for _, tc := range []struct {
		name  string
		kinds []Kind
		args  [5]uint64
		bad   int // argument refused, 0: none
	}{
		{"scalars", []Kind{Scalar, Scalar}, [5]uint64{1, 2}, 0},
		{"a map", []Kind{Handle}, [5]uint64{MapHandle(0)}, 0},
		{"no such map", []Kind{Handle}, [5]uint64{MapHandle(1)}, 1},
		{"null map", []Kind{Handle}, [5]uint64{0}, 1},
		{"index instead of a map", []Kind{Scalar, Handle}, [5]uint64{0, 1}, 2},
		{"handle before the first", []Kind{Handle}, [5]uint64{MapHandle(0) - 1}, 1},
		{"key", []Kind{Handle, Key}, [5]uint64{MapHandle(0), base + 60}, 0},
		{"key past the end", []Kind{Handle, Key}, [5]uint64{MapHandle(0), base + 61}, 2},
		{"value", []Kind{Handle, Key, Value}, [5]uint64{MapHandle(0), base, base + 56}, 0},
		{"value past the end", []Kind{Handle, Key, Value}, [5]uint64{MapHandle(0), base, base + 57}, 3},
		{"null value", []Kind{Handle, Key, Value}, [5]uint64{MapHandle(0), base, 0}, 3},
		{"readable", []Kind{Readable, Length}, [5]uint64{base, 64}, 0},
		{"nothing at null", []Kind{Readable, Length}, [5]uint64{0, 0}, 0},
		{"one byte at null", []Kind{Readable, Length}, [5]uint64{0, 1}, 1},
		{"past the end", []Kind{Readable, Length}, [5]uint64{base, 65}, 1},
		{"before the start", []Kind{Readable, Length}, [5]uint64{base - 1, 2}, 1},
		{"negative length", []Kind{Readable, Length}, [5]uint64{base, ^uint64(0)}, 1},
		{"length that wraps", []Kind{Readable, Length}, [5]uint64{base + 1, ^uint64(0)}, 1},
		{"writable", []Kind{Scalar, Writable, Length}, [5]uint64{0, base, 1}, 0},
		{"writable past the end", []Kind{Scalar, Writable, Length}, [5]uint64{0, base + 64, 1}, 2},
		{"two pointers", []Kind{Readable, Length, Writable, Length}, [5]uint64{base, 8, base + 64, 8}, 3},
	} {
		ran := false
		s := declared(t, Service{Name: "s", Args: tc.kinds, Func: func(c *Call) (uint64, error) { ran = true; return 7, nil }})
		c.Args = tc.args
		r0, err := s.Call(c)
		var e *ArgumentError
		switch {
		case tc.bad == 0 && (err != nil || r0 != 7 || !ran):
			t.Errorf("%s: %d, %v, ran %v", tc.name, r0, err, ran)
		case tc.bad != 0 && (!errors.As(err, &e) || e.Argument != tc.bad || e.Value != tc.args[tc.bad-1] || ran):
			t.Errorf("%s: %v, ran %v, want argument %d refused", tc.name, err, ran, tc.bad)
		}
	}
	c.Space = readOnly
	write := declared(t, Service{Name: "w", Args: []Kind{Writable, Length}, Func: func(*Call) (uint64, error) { return 0, nil }})
	c.Args = [5]uint64{base, 1}
	if _, err := write.Call(c); err == nil {
		t.Error("read-only memory was given to a service that writes")
	}
}

func TestBytesAndMap(t *testing.T) {
	c, mem, base := newCall(t, array)
	copy(mem, "key.value...")
	want := "value"
	s := declared(t, Service{Name: "s", Args: []Kind{Handle, Key, Readable, Length}, Func: func(c *Call) (uint64, error) {
		if c.Map(0) != c.Maps[0] || string(c.Bytes(1)) != "key." || string(c.Bytes(2)) != want {
			t.Errorf("map %p, key %q, bytes %q, want %q", c.Map(0), c.Bytes(1), c.Bytes(2), want)
		}
		return 0, nil
	}})
	c.Args = [5]uint64{MapHandle(0), base, base + 4, 5}
	if _, err := s.Call(c); err != nil {
		t.Fatal(err)
	}
	want, c.Args[3] = "", 0 // not the bytes of the call before
	if _, err := s.Call(c); err != nil {
		t.Fatal(err)
	}
}

func TestLinuxMaps(t *testing.T) {
	table, err := NewTable(Linux()...)
	if err != nil {
		t.Fatal(err)
	}
	readOnly := array
	readOnly.ReadOnly = true
	perCore := array
	perCore.Kind = state.PerCore
	neg := func(e unix.Errno) uint64 { return uint64(-int64(e)) }
	for _, tc := range []struct {
		name  string
		spec  state.Spec
		n     int32
		key   byte
		flags uint64
		want  uint64
	}{
		{"update", array, 2, 3, 0, 0},
		{"update what exists", array, 2, 0, updateExist, 0},
		{"update what does not exist", array, 2, 0, updateNoExist, neg(unix.EEXIST)},
		{"update past the end", array, 2, 4, 0, neg(unix.E2BIG)},
		{"update with unknown flags", array, 2, 0, 3, neg(unix.EINVAL)},
		{"update read-only", readOnly, 2, 0, 0, neg(unix.EPERM)},
		{"update per core", perCore, 2, 1, 0, 0},
		{"delete", array, 3, 0, 0, neg(unix.EINVAL)},
		{"lookup past the end", array, 1, 4, 0, 0},
	} {
		c, mem, base := newCall(t, tc.spec)
		mem[0] = tc.key
		copy(mem[8:], "12345678")
		c.Core = 1
		c.Args = [5]uint64{MapHandle(0), base, base + 8, tc.flags}
		got, err := table.Number(tc.n).Call(c)
		if err != nil || got != tc.want {
			t.Errorf("%s: %d, %v, want %d", tc.name, int64(got), err, int64(tc.want))
		}
		if tc.n == 2 && tc.want == 0 {
			if v, _ := c.Maps[0].Value(1, uint32(tc.key)); string(v) != "12345678" {
				t.Errorf("%s: the element is %q", tc.name, v)
			}
			addr, err := table.Number(1).Call(c)
			if err != nil || !bytes.Equal(memory.View(addr, 8), []byte("12345678")) {
				t.Errorf("%s: lookup: %#x, %v", tc.name, addr, err)
			}
		}
	}
	c, _, base := newCall(t, perCore)
	c.Args = [5]uint64{MapHandle(0), base}
	on := func(core int) uint64 {
		c.Core = core
		addr, _ := table.Number(1).Call(c)
		return addr
	}
	if on(0) == on(1) || on(2) != 0 {
		t.Errorf("per-core elements at %#x, %#x, %#x", on(0), on(1), on(2))
	}
}

func TestLinuxClockAndCore(t *testing.T) {
	table, err := NewTable(Linux()...)
	if err != nil {
		t.Fatal(err)
	}
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		t.Fatal(err)
	}
	got, _ := table.Number(5).Call(&Call{})
	if diff := time.Duration(int64(got) - ts.Nano()); diff < -time.Second || diff > 10*time.Second {
		t.Errorf("ktime_get_ns is %v away from CLOCK_MONOTONIC", diff)
	}
	if got, _ := table.Number(8).Call(&Call{Core: 3}); got != 3 {
		t.Errorf("core %d, want 3", got)
	}
	seen := make(map[uint64]bool)
	for range 20 {
		v, _ := table.Number(7).Call(&Call{})
		seen[v] = true
		if v > 1<<32-1 {
			t.Errorf("random %#x has more than 32 bits", v)
		}
	}
	if len(seen) < 15 {
		t.Errorf("%d different random numbers of 20", len(seen))
	}
}

func TestHandlesAreNoAddresses(t *testing.T) {
	const lastUser = 1<<56 - 1 // with five levels of page tables
	if MapHandle(0) <= lastUser || MapHandle(1<<20) >= CodeAddress(0) {
		t.Error("handles overlap with addresses or with code addresses")
	}
}
