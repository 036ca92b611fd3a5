package file

import (
	"errors"
	"fmt"
	"strings"

	"margay/internal/nodeset"
)

// console says by which command the serial ports of some nodes are reached.
type console struct {
	Nodes   string   `yaml:"nodes"`
	Command []string `yaml:"command"`
}

// check checks an entry and returns its nodes.
func (c console) check() ([]uint32, error) {
	nodes, err := nodeset.Parse(c.Nodes)
	switch {
	case err != nil:
		return nil, fmt.Errorf("nodes: %w", err)
	case len(c.Command) == 0 || c.Command[0] == "":
		return nil, errors.New("command has no program")
	case len(nodes) > 1 && !strings.Contains(strings.Join(c.Command, " "), number):
		return nil, fmt.Errorf("%s would be one and the same: each needs an entry, or %s in its command", c.Nodes, number)
	}
	return nodes, nil
}

// addConsoles adds the entries below console.
func (m *Machine) addConsoles(all []console) error {
	for i, c := range all {
		nodes, err := c.check()
		if err != nil {
			return fmt.Errorf("entry %d of console: %w", i+1, err)
		}
		for _, node := range nodes {
			if m.consoles[node] != nil {
				return fmt.Errorf("entry %d of console: an earlier entry has node%d already", i+1, node)
			}
			m.consoles[node] = c.Command
		}
		if len(m.consoles) > nodeset.Most {
			return fmt.Errorf("it has more than %d nodes", nodeset.Most)
		}
	}
	return nil
}

// Console returns the program and the arguments that connect a terminal to the serial port of a
// node; nil if the file names none.
func (m *Machine) Console(node uint32) []string {
	var args []string
	for _, arg := range m.consoles[node] {
		args = append(args, fill(arg, node))
	}
	if args != nil {
		args[0] = m.program(args[0])
	}
	return args
}
