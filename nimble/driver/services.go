package driver

import (
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"margay/nimble/service"
)

// tables are the sets of services by name, the one for bare instructions first.
var tables = []struct {
	name     string
	services func() []service.Service
}{
	{"test", test},
	{"linux", service.Linux},
	{"node", node},
	{"none", func() []service.Service { return nil }},
}

// TableNames returns the names that Services knows.
func TableNames() []string {
	var names []string
	for _, t := range tables {
		names = append(names, t.name)
	}
	return names
}

// Services returns a set of services: test is what conformance tests call,
// linux what a node offers under the numbers of Linux, node all that it offers,
// none nothing.
func Services(name string) (*service.Table, error) {
	i := slices.Index(TableNames(), name)
	if i < 0 {
		return nil, fmt.Errorf("no services %q; there are %s", name, strings.Join(TableNames(), ", "))
	}
	return service.NewTable(tables[i].services()...)
}

// test returns the services of conformance tests: 5 returns its first argument,
// 1 changes memory (pointer, length).
func test() []service.Service {
	return []service.Service{
		{Number: 1, Name: "memfrob", Args: []service.Kind{service.Writable, service.Length}, Func: memfrob},
		{Number: 5, Name: "first", Args: []service.Kind{service.Scalar}, Func: func(c *service.Call) (uint64, error) { return c.Args[0], nil }},
	}
}

// node returns the services of a node. The extension is the only one, so it
// finds none that it could call.
func node() []service.Service {
	return append(service.Linux(), service.Service{
		Name: "extension_call", Args: []service.Kind{service.Scalar, service.Writable, service.Length},
		Func: func(*service.Call) (uint64, error) { return service.Errno(unix.ENOENT), nil },
	})
}

// memfrob does what the function of that name in the C library does: it xors
// each byte with 42.
func memfrob(c *service.Call) (uint64, error) {
	b := c.Bytes(0)
	for i := range b {
		b[i] ^= 42
	}
	return 0, nil
}
