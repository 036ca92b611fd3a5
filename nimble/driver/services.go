package driver

import (
	"fmt"
	"slices"
	"strings"

	"margay/nimble/service"
)

// tables are the sets of services by name, the one for bare instructions first.
var tables = []struct {
	name     string
	services func() []service.Service
}{
	{"test", test},
	{"linux", service.Linux},
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
// linux what a node offers under the numbers of Linux, none nothing.
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

// memfrob does what the function of that name in the C library does: it xors
// each byte with 42.
func memfrob(c *service.Call) (uint64, error) {
	b := c.Bytes(0)
	for i := range b {
		b[i] ^= 42
	}
	return 0, nil
}
