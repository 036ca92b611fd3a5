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
// finds none that it could call, and handles no message, so it cannot send any.
func node() []service.Service {
	var (
		call  = []service.Kind{service.Scalar, service.Writable, service.Length}
		sends = []service.Kind{service.Readable, service.Length, service.Readable, service.Length}
		one   = []service.Kind{service.Scalar}
	)
	services := service.Linux()
	for _, s := range []struct {
		name  string
		args  []service.Kind
		errno unix.Errno
	}{
		{"extension_call", call, unix.ENOENT},
		{"message_send", sends, unix.ENOTSUP},
		{"message_reply", sends, unix.ENOTSUP},
		{"message_put", sends, unix.ENOTSUP},
		{"message_change", one, unix.ENOTSUP},
		{"message_room", one, unix.ENOTSUP},
		{"message_sender", nil, unix.ENOTSUP},
		{"job_rank", call, unix.ENOTSUP},
		{"job_node", call, unix.ENOTSUP},
	} {
		services = append(services, service.Service{Name: s.name, Args: s.args, Func: func(*service.Call) (uint64, error) {
			return service.Errno(s.errno), nil
		}})
	}
	return services
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
