package alloc

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"margay/cluster/control"
	"margay/cluster/site"
	"margay/internal/nodeset"
	"margay/tools/margay/job"
)

// hostfileVariable names the file with the nodes of the allocation.
const hostfileVariable = "MARGAY_HOSTFILE"

// place is a node of an allocation.
type place struct {
	node  uint32
	cores int // that the allocation has there
}

// places are the nodes of an allocation, in order.
type places []place

func newPlaces(list []*control.Place) (all places) {
	for _, p := range list {
		if len(all) == 0 || all[len(all)-1].node != p.Node {
			all = append(all, place{node: p.Node})
		}
		all[len(all)-1].cores += 1 + len(p.More)
	}
	return all
}

func (p places) nodes() (nodes []uint32) {
	for _, one := range p {
		nodes = append(nodes, one.node)
	}
	return nodes
}

func (p places) count() (cores int) {
	for _, one := range p {
		cores += one.cores
	}
	return cores
}

// text is the contents of the host file.
func (p places) text() string {
	var b strings.Builder
	for _, one := range p {
		fmt.Fprintf(&b, "node%d slots=%d\n", one.node, one.cores)
	}
	return b.String()
}

// readHosts reads a host file.
func readHosts(r io.Reader) (all places, err error) {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		name, slots, ok := strings.Cut(lines.Text(), " slots=")
		node, err := nodeset.ParseNode(name)
		if err != nil {
			return nil, err
		}
		cores, err := strconv.ParseUint(slots, 10, 16)
		if !ok || err != nil || cores == 0 {
			return nil, fmt.Errorf("%q has no number of cores", lines.Text())
		}
		all = append(all, place{node, int(cores)})
	}
	return all, lines.Err()
}

// hostsHere returns the nodes of the allocation around this command.
func hostsHere() (places, error) {
	path := os.Getenv(hostfileVariable)
	if path == "" {
		return nil, errors.New("this is in no allocation: margay alloc runs a command in one")
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("the allocation around this command has ended: %w", err)
	}
	defer f.Close()
	all, err := readHosts(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return all, nil
}

// file returns a file with the nodes, in memory: it is gone with this process.
func (p places) file() (*os.File, error) {
	fd, err := unix.MemfdCreate("margay-hosts", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("alloc: make the host file: %w", err)
	}
	f := os.NewFile(uintptr(fd), "the host file")
	if _, err := f.WriteString(p.text()); err != nil {
		f.Close()
		return nil, fmt.Errorf("alloc: write the host file: %w", err)
	}
	return f, nil
}

// hostfile is the name of a file for other processes of the user.
func hostfile(f *os.File) string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), f.Fd()) }

// environment is the environment of a command in an allocation.
func environment(env []string, machine string, number uint32, p places, hostfile string) []string {
	var names []string
	for _, node := range p.nodes() {
		names = append(names, fmt.Sprintf("node%d", node))
	}
	set := []string{
		site.MachineVariable + "=" + machine,
		fmt.Sprintf("%s=%d", job.AllocationVariable, number),
		"MARGAY_NODELIST=" + strings.Join(names, ","),
		fmt.Sprintf("MARGAY_CORES=%d", p.count()),
		hostfileVariable + "=" + hostfile,
	}
	if self, err := os.Executable(); err == nil {
		set = append(set, openMPI(self, hostfile, env)...)
	}
	env = slices.Clone(env)
	for _, entry := range set {
		env = job.SetVariable(env, entry)
	}
	return env
}
