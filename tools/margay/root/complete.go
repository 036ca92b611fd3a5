package root

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"margay/cluster/client"
	"margay/cluster/control"
	"margay/cluster/ledger"
	"margay/cluster/machine"
	"margay/cluster/rates"
	"margay/kernel/abi/node"
	"margay/kernel/abi/slot"
	"margay/kernel/klog"
	"margay/nimble/engine/list"
	"margay/tools/margay/bench/fabric"
	"margay/tools/margay/command"
	"margay/tools/margay/job"
	local "margay/tools/margay/machine"
	"margay/tools/margay/observe"
)

// completionTimeout bounds how long a shell waits for what could come next on its line.
const completionTimeout = time.Second

// mostRanks is how many ranks of a job are completed.
const mostRanks = 100

// fabrics are the values of --fabric.
var fabrics = append([]string{machine.FabricAuto}, node.Fabrics...)

// enumerated are the values of flags that take one of a few, by the command and the flag.
var enumerated = map[string]map[string][]string{
	"machine up": {
		"substrate": {node.Virtual, node.Hosted, node.Hosts, node.Metal},
		"profile":   {node.Isolated, node.Ticking, node.Sched},
		"boot":      machine.Boots,
		"accel":     {"tcg", "kvm", "auto"},
		"fabric":    fabrics,
		"cores":     {"1", "2", "3", "all"},
	},
	"node dmesg":    {"level": levelNames()},
	"machine cores": {"all": {"on", "off"}, "message-core": {"on", "off"}},
	"run":           {"stdin": {"first", "all", "none"}, "timing": {"table", "json"}, "mpi": {"auto", "pmi1", "none"}, "label": {"rank", "host", "both"}},
	"history":       {"state": stateNames()},
	"kill":          {"signal": {"TERM", "INT", "HUP", "KILL", "QUIT", "USR1", "USR2", "STOP", "CONT"}},
	"top":           {"sort": orderNames()},
	"bench sched":   {"substrate": {"hosted", "qemu", "qemu-isolated"}},
	"bench fabric":  {"case": fabric.CaseNames(), "place": fabric.PlaceNames(), "fabric": fabrics},
	"ext insert":    {"slot": slotNames()},
	"nimble run":    {"engine": engineNames(), "services": {"test", "linux", "node", "none"}},
	"nimble verify": {"services": {"test", "linux", "node", "none"}},
	"nimble bench":  {"engine": engineNames()},
}

func orderNames() (names []string) {
	for _, order := range rates.Orders {
		names = append(names, string(order))
	}
	return names
}

func stateNames() (names []string) {
	for _, state := range ledger.States {
		names = append(names, string(state))
	}
	return names
}

func levelNames() (names []string) {
	for _, level := range klog.Levels() {
		names = append(names, level.Short(), level.Short()+"+")
	}
	return names
}

func engineNames() (names []string) {
	for _, e := range list.Engines {
		names = append(names, e.Name)
	}
	return names
}

func slotNames() (names []string) {
	for _, r := range slot.Table {
		if r.Ready {
			names = append(names, string(r.Name))
		}
	}
	return names
}

// named are the things that a machine has.
type named struct{ *command.App }

// complete registers the completion of names: machines, nodes, jobs and extensions.
func complete(a *command.App, root *cobra.Command) {
	n := named{a}
	_ = root.RegisterFlagCompletionFunc("machine", names(n.machineNames))
	walk(root, func(c *cobra.Command) {
		for flag, values := range enumerated[command.Called(c)] {
			_ = c.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
		}
		for _, flag := range []string{"node", "nodelist", "exclude"} {
			if c.Flags().Lookup(flag) != nil {
				_ = c.RegisterFlagCompletionFunc(flag, names(n.nodeNames))
			}
		}
		if c.Flags().Lookup("job") != nil {
			_ = c.RegisterFlagCompletionFunc("job", names(n.liveNames))
		}
		if c.Flags().Lookup("color") != nil {
			_ = c.RegisterFlagCompletionFunc("color", cobra.FixedCompletions([]string{"auto", "always", "never"}, cobra.ShellCompDirectiveNoFileComp))
		}
		if c.Flags().Lookup("allocation") != nil {
			_ = c.RegisterFlagCompletionFunc("allocation", names(n.allocationNames))
		}
		switch command.Called(c) {
		case "ps":
			c.ValidArgsFunction = first(names(n.jobNames))
		case "kill":
			c.ValidArgsFunction = first(names(n.liveNames))
		case "backtrace":
			c.ValidArgsFunction = n.completeBacktrace
		case "wait":
			c.ValidArgsFunction = names(n.jobNames)
		case "logs":
			c.ValidArgsFunction = n.completeLogs
		case "node drain", "node evict", "node reboot", "node update", "machine shrink", "node power on", "node power off", "node power reset", "node power status", "node dmesg":
			c.ValidArgsFunction = names(n.nodeNames)
		case "node resume":
			c.ValidArgsFunction = names(n.drainedNames)
		case "machine restart", "machine console":
			c.ValidArgsFunction = first(names(n.nodeNames))
		case "ext remove":
			c.ValidArgsFunction = names(n.extensionNames)
		}
	})
}

// completionExamples adds examples to the commands that cobra makes.
func completionExamples(root *cobra.Command) {
	examples := map[string]string{
		"completion bash":       "  source <(margay completion bash)",
		"completion zsh":        "  source <(margay completion zsh)",
		"completion fish":       "  margay completion fish | source",
		"completion powershell": "  margay completion powershell | Out-String | Invoke-Expression",
	}
	walk(root, func(c *cobra.Command) {
		if example, ok := examples[command.Called(c)]; ok {
			c.Example = example
		}
	})
}

// walk calls f for a command and all below it.
func walk(c *cobra.Command, f func(*cobra.Command)) {
	f(c)
	for _, sub := range c.Commands() {
		walk(sub, f)
	}
}

// names makes a completion of a list of names. One that was given already is left out.
func names(list func() []string) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		left := slices.DeleteFunc(list(), func(entry string) bool {
			name, _, _ := strings.Cut(entry, "\t")
			return slices.Contains(args, name)
		})
		return left, cobra.ShellCompDirectiveNoFileComp
	}
}

// first completes the first argument only.
func first(f cobra.CompletionFunc) cobra.CompletionFunc {
	return func(c *cobra.Command, args []string, text string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return f(c, args, text)
	}
}

// completeBacktrace completes a job, and then its ranks.
func (n named) completeBacktrace(c *cobra.Command, args []string, text string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return names(n.liveNames)(c, args, text)
	}
	return names(func() (entries []string) {
		job, err := command.ParseJob(args[0])
		if err != nil {
			return nil
		}
		jobs, _ := quickly[*control.Jobs](n.App, &control.ListJobs{Job: job})
		for _, j := range jobs.GetJobs() {
			for rank := range min(j.Ranks, mostRanks) {
				entries = append(entries, fmt.Sprint(rank))
			}
		}
		return entries
	})(c, args[1:], text)
}

// completeLogs completes one job whose output is shown, and any number of those whose output is
// removed.
func (n named) completeLogs(c *cobra.Command, args []string, text string) ([]string, cobra.ShellCompDirective) {
	if remove, _ := c.Flags().GetBool("remove"); remove {
		return names(n.keptNames)(c, args, text)
	}
	return first(names(n.keptNames))(c, args, text)
}

// quickly asks serve with a short timeout. Errors are dropped: a completion has no place for them.
func quickly[Answer proto.Message](a *command.App, question proto.Message) (answer Answer, ok bool) {
	socket, err := a.Socket()
	if err != nil {
		return answer, false
	}
	ctx, cancel := context.WithTimeout(context.Background(), completionTimeout)
	defer cancel()
	answer, err = client.Ask[Answer](ctx, socket, question)
	return answer, err == nil
}

func (n named) machineNames() (entries []string) {
	machines, _ := local.List()
	for _, m := range machines {
		entries = append(entries, cobra.CompletionWithDesc(m.Machine, fmt.Sprintf("%s, %d nodes, %s", m.Substrate, m.Nodes, m.State)))
	}
	return entries
}

func (n named) jobNames() []string {
	return n.jobsThat(func(*control.JobSummary) bool { return true })
}

// liveNames are the jobs that have not ended.
func (n named) liveNames() []string {
	return n.jobsThat(func(j *control.JobSummary) bool { return j.Phase != control.JobPhase_JOB_DONE })
}

// allocationNames are the allocations, and the word for none.
func (n named) allocationNames() []string {
	return append(n.jobsThat(func(j *control.JobSummary) bool { return j.Allocation && j.Phase != control.JobPhase_JOB_DONE }), "none")
}

// keptNames are the jobs that are detached: the output of others is not kept.
func (n named) keptNames() []string { return n.jobsThat((*control.JobSummary).GetDetached) }

func (n named) jobsThat(ok func(*control.JobSummary) bool) (entries []string) {
	jobs, _ := quickly[*control.Jobs](n.App, &control.ListJobs{All: true})
	for _, j := range slices.DeleteFunc(jobs.GetJobs(), func(j *control.JobSummary) bool { return !ok(j) }) {
		entries = append(entries, cobra.CompletionWithDesc(fmt.Sprint(j.Job), fmt.Sprintf("%s, %s", j.Command, job.State(j))))
	}
	return entries
}

func (n named) nodeNames() []string {
	return n.nodesThat(func(*control.NodeState) bool { return true })
}

func (n named) drainedNames() []string {
	return n.nodesThat(func(node *control.NodeState) bool { return node.Drain != nil })
}

func (n named) nodesThat(ok func(*control.NodeState) bool) (entries []string) {
	nodes, _ := quickly[*control.Nodes](n.App, &control.ListNodes{})
	for _, node := range slices.DeleteFunc(nodes.GetNodes(), func(node *control.NodeState) bool { return !ok(node) }) {
		entries = append(entries, cobra.CompletionWithDesc(fmt.Sprintf("node%d", node.Node), observe.State(node)))
	}
	return entries
}

func (n named) extensionNames() (entries []string) {
	all, _ := quickly[*control.Extensions](n.App, &control.ListExtensions{Node: control.None})
	for _, x := range all.GetExtensions() {
		if x.State == "active" {
			entries = append(entries, cobra.CompletionWithDesc(command.ExtensionID(x.Node, x.Handle), fmt.Sprintf("%s of %s", x.Name, x.Slot)))
		}
	}
	return entries
}
