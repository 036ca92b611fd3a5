package alloc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"margay/cluster/launch"
	"margay/cluster/wayback"
	"margay/internal/nodeset"
	"margay/internal/slack"
	"margay/tools/margay/command"
	"margay/tools/margay/job"
)

// Open MPI's mpirun starts a daemon, orted, on each node by a launch agent, as it would by ssh:
// AGENT HOST WORD..., where the words are for a shell. In an allocation the agent is a hidden
// command (agentCommand). It starts a step with all cores of the node and the network of the
// allocation, and in that another hidden command (daemonCommand), which runs the words.
//
// The daemon connects to mpirun, at an address that is one of its arguments. No job reaches that.
// So the connection goes to the hidden command on the node, over the step's standard input and
// output to the agent, and from there to mpirun (cluster/wayback). Daemons and ranks reach each
// other over the network of the allocation.

// The hidden commands.
const (
	agentName  = "mpi-agent"
	daemonName = "mpi-daemon"
)

// openMPI returns the variables that have mpirun start its daemons by the program self. Those that
// the user has set stay.
func openMPI(self, hostfile string, env []string) (set []string) {
	if strings.ContainsAny(self, " \t:") { // mpirun splits the name of its agent there
		return nil
	}
	for _, v := range []struct{ name, value string }{
		{"OMPI_MCA_plm_rsh_agent", self + " " + agentName},
		{"OMPI_MCA_plm_rsh_no_tree_spawn", "1"},        // a node has no agent
		{"OMPI_MCA_plm_rsh_num_concurrent", "1000000"}, // agents live as long as their daemons
		{"OMPI_MCA_orte_leave_session_attached", "1"},  // a daemon that leaves its session is left behind
		{"OMPI_MCA_orte_default_hostfile", hostfile},
		{"OMPI_MCA_hwloc_base_binding_policy", "none"}, // the CPUs of a hosted node may be shared
		{"HWLOC_HIDE_ERRORS", "2"},                     // a job has no /sys with them
	} {
		if entry := v.name + "="; !hasPrefix(env, entry) {
			set = append(set, entry+v.value)
		}
	}
	return set
}

func hasPrefix(list []string, prefix string) bool {
	for _, entry := range list {
		if strings.HasPrefix(entry, prefix) {
			return true
		}
	}
	return false
}

// agentCommand is what mpirun starts here, for each node.
func (a commands) agentCommand() *cobra.Command {
	return &cobra.Command{
		Use: agentName + " NODE WORD...", Short: "Start a daemon of Open MPI on a node", Hidden: true, DisableFlagParsing: true,
		Args: command.Arguments(2, -1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := a.agent(c.Context(), args[0], strings.Join(args[1:], " ")); err != nil {
				return renamed("mpirun on "+args[0], err)
			}
			return nil
		},
	}
}

// agent runs the words of mpirun on a node, and carries the connections of what they start to
// mpirun.
func (a commands) agent(ctx context.Context, host, words string) error {
	all, err := hostsHere()
	if err != nil {
		return err
	}
	node, err := nodeset.ParseNode(host)
	if err != nil {
		return fmt.Errorf("the host %s is not a node of the allocation: %w", host, err)
	}
	addresses, err := mpirunAt(words)
	if err != nil {
		return err
	}
	f := job.Flags{
		Ranks: 1, Nodes: 1, Only: host, Stdin: "first", MPI: "none", Root: "host", Files: []string{"."}, Network: true, Joins: true, Quiet: true,
		Wait: agentWait,
	}
	for _, p := range all {
		if p.node == node {
			f.CoresEach = p.cores
		}
	}
	if f.CoresEach == 0 {
		return fmt.Errorf("%s is not in the allocation, which has %s", host, nodeset.Condense(all.nodes()))
	}
	if err := f.EnterAllocation(a.App); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	toNode, fromHere := io.Pipe()
	toHere, fromNode := io.Pipe()
	carried := make(chan error, 1)
	var connected atomic.Bool
	dial := func() (net.Conn, error) {
		connected.Store(true)
		return dialAny(addresses)
	}
	go func() {
		err := wayback.ServeClient(dial, toHere, fromHere)
		toHere.CloseWithError(err) // the step's output has no reader then, which ends the step
		carried <- err
	}()
	app := *a.App
	app.Stdin, app.Stdout = toNode, fromNode
	err = job.Run(ctx, &app, f, []string{self, daemonName, words})
	fromNode.Close()
	toNode.Close()
	err = errors.Join(err, <-carried)
	if err != nil && connected.Load() { // mpirun reports the end of its daemon, and may have ended first
		return command.Failed(launch.ExitMargay, nil)
	}
	return err
}

// agentWait is how long a daemon waits for the cores of its node: the last mpirun may just be
// ending.
const agentWait = "30s"

// contact is how the arguments of a daemon name mpirun: its number, and where it listens.
var contact = regexp.MustCompile(`([0-9]+\.[0-9]+);tcp6?://[^"'\s]+`)

// mpirunAt returns the addresses at which mpirun waits for its daemons, as its words say.
func mpirunAt(words string) (addresses []string, err error) {
	for _, uri := range strings.Split(contact.FindString(words), ";") {
		list, is := strings.CutPrefix(uri, "tcp://")
		if !is {
			continue
		}
		hosts, port, ok := strings.Cut(list, ":")
		if !ok {
			return nil, fmt.Errorf("%q has no port", uri)
		}
		for _, host := range strings.Split(hosts, ",") {
			addresses = append(addresses, net.JoinHostPort(host, port))
		}
	}
	if len(addresses) == 0 {
		return nil, fmt.Errorf("the words for the daemon name no address of mpirun; this is for Open MPI 4: %s", words)
	}
	return addresses, nil
}

// dialTimeout bounds a connection to mpirun, which is on this host.
const dialTimeout = 10 * time.Second

// dialAny connects to the first of the addresses that answers.
func dialAny(addresses []string) (c net.Conn, err error) {
	for _, address := range addresses {
		if c, err = net.DialTimeout("tcp", address, dialTimeout); err == nil {
			return c, nil
		}
	}
	return nil, err
}

// daemonCommand is what runs on the node.
func (a commands) daemonCommand() *cobra.Command {
	return &cobra.Command{
		Use: daemonName + " WORDS", Short: "Run a daemon of Open MPI", Hidden: true, DisableFlagParsing: true,
		Args: command.Arguments(1, 1),
		RunE: func(c *cobra.Command, args []string) error { return a.daemon(args[0]) },
	}
}

// daemon runs words of mpirun in a shell. Their connections to mpirun come here first.
func (a commands) daemon(words string) error {
	if _, err := mpirunAt(words); err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	go wayback.ServeNode(l, a.Stdin, below(a.Stdout))
	cmd := exec.Command("/bin/sh", "-c", contact.ReplaceAllString(words, "$1;tcp://"+l.Addr().String()))
	cmd.Stdout, cmd.Stderr = a.Stderr, a.Stderr
	err = slack.Start(slack.Application, cmd.Run)
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return command.Failed(exit.ExitCode(), nil)
	}
	return err
}
