package extension

import (
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"margay/kernel/abi/slot"
	"margay/nimble/service"
)

// The header with which extensions are compiled declares exactly the services that some slot
// offers, with their numbers and arguments.
func TestHeaderDeclaresServices(t *testing.T) {
	header, err := os.ReadFile("../abi/slot/margay_ext.h")
	if err != nil {
		t.Fatal(err)
	}
	declared := make(map[int32]int) // arguments by number; print has any number of them
	for _, d := range regexp.MustCompile(`(?m)^static .*\(\*const \w+\)\((.*)\) = \(void \*\)(\d+);`).FindAllStringSubmatch(string(header), -1) {
		number, err := strconv.ParseInt(d[2], 10, 32)
		if err != nil {
			t.Fatal(err)
		}
		if _, twice := declared[int32(number)]; twice {
			t.Errorf("number %d is declared twice", number)
		}
		switch {
		case d[1] == "void":
			declared[int32(number)] = 0
		case strings.HasSuffix(d[1], ", ..."):
			declared[int32(number)] = -1
		default:
			declared[int32(number)] = 1 + strings.Count(d[1], ",")
		}
	}
	offered := make(map[string]bool)
	for _, row := range slot.Table {
		for _, name := range row.Services {
			offered[name] = true
		}
	}
	for _, s := range append(append(service.Linux(), callService), handlingServices...) {
		if !offered[s.Name] {
			continue
		}
		delete(offered, s.Name)
		if s.Number == 0 {
			if !strings.Contains(string(header), " "+s.Name+"(") {
				t.Errorf("the header does not declare %s", s.Name)
			}
			continue
		}
		arguments, ok := declared[int32(s.Number)]
		if !ok || arguments >= 0 && arguments != len(s.Args) {
			t.Errorf("service %s has the number %d and %d arguments, the header declares it: %v, with %d", s.Name, s.Number, len(s.Args), ok, arguments)
		}
		delete(declared, int32(s.Number))
	}
	for name := range offered {
		t.Errorf("slots offer %s, which is no service", name)
	}
	for number := range declared {
		t.Errorf("the header declares a service %d, which no slot offers", number)
	}
}
