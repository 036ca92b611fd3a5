package command

import (
	"fmt"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"margay/cluster/control"
	"margay/internal/nodeset"
	"margay/internal/printable"
)

// ParseJob reads the number of a job.
func ParseJob(text string) (uint32, error) {
	job, err := strconv.ParseUint(text, 10, 32)
	if err != nil || job == 0 {
		return 0, fmt.Errorf("%q is not a job: jobs have numbers (margay ps)", text)
	}
	return uint32(job), nil
}

// ParseJobs reads numbers of jobs.
func ParseJobs(texts []string) ([]uint32, error) {
	var jobs []uint32
	for _, text := range texts {
		job, err := ParseJob(text)
		if err != nil {
			return nil, err
		}
		jobs = append(jobs, job)
	}
	return jobs, nil
}

// NodeFlag gives a command the flag that names a node. Without the flag node is unchanged.
func (a *App) NodeFlag(c *cobra.Command, node *int32, usage string) {
	c.Flags().Var(nodeValue{node}, "node", usage)
}

// nodeValue is the value of --node: node2, or 2.
type nodeValue struct{ node *int32 }

func (v nodeValue) Set(text string) error {
	node, err := nodeset.ParseNode(text)
	*v.node = int32(node)
	return err
}

func (v nodeValue) String() string {
	if v.node == nil || *v.node == control.None {
		return ""
	}
	return fmt.Sprintf("node%d", *v.node)
}

func (v nodeValue) Type() string { return "node" }

// ParseSignal reads a signal: its name, with or without SIG, or its number.
func ParseSignal(text string) (syscall.Signal, error) {
	if number, err := strconv.Atoi(text); err == nil && number > 0 && number < 65 {
		return syscall.Signal(number), nil
	}
	name := strings.ToUpper(text)
	if !strings.HasPrefix(name, "SIG") {
		name = "SIG" + name
	}
	if sig := printable.ParseSignal(name); sig != 0 {
		return sig, nil
	}
	return 0, fmt.Errorf("%q is not a signal", text)
}

// ParseSettings reads the values of --set: NAME=VALUE.
func ParseSettings(texts []string) ([]*control.ExtensionSetting, error) {
	var settings []*control.ExtensionSetting
	for _, text := range texts {
		name, number, ok := strings.Cut(text, "=")
		value, err := strconv.ParseUint(number, 0, 64)
		if !ok || name == "" || err != nil {
			return nil, fmt.Errorf("setting %q: it is NAME=VALUE, with the name of a constant of the extension and a number that is not negative", text)
		}
		settings = append(settings, &control.ExtensionSetting{Name: name, Value: value})
	}
	return settings, nil
}

// Whose names the owner of an extension.
func Whose(job uint32) string {
	if job == 0 {
		return "machine"
	}
	return strconv.FormatUint(uint64(job), 10)
}

// Allocator takes the place of the node in the names of the allocator's extensions.
const Allocator = "serve"

// ExtensionID names an extension by its node, or control.Allocator, and its handle.
func ExtensionID(node, handle uint32) string {
	if node == control.Allocator {
		return fmt.Sprintf("%s.%d", Allocator, handle)
	}
	return fmt.Sprintf("%d.%d", node, handle)
}

// ParseExtension reads the name of an extension. It accepts all names of a node.
func ParseExtension(text string) (*control.RemoveExtension, error) {
	name, number, _ := strings.Cut(text, ".")
	m := &control.RemoveExtension{Node: control.Allocator}
	if name != Allocator {
		var err error
		if m.Node, err = nodeset.ParseNode(name); err != nil {
			return nil, err
		}
	}
	handle, err := strconv.ParseUint(number, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("%q is not an extension: extensions are called NODE.HANDLE, or %s.HANDLE (margay ext list)", text, Allocator)
	}
	m.Handle = uint32(handle)
	return m, nil
}
