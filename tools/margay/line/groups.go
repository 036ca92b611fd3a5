package line

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"margay/tools/margay/command"
)

// otherNames are names under which users of other systems look for a command, by the group that it
// is in.
var otherNames = map[string]map[string][]string{
	"margay": {
		"ps":      {"jobs", "job", "ls", "list", "queue", "squeue"},
		"kill":    {"rm", "remove", "stop", "cancel", "scancel", "terminate"},
		"alloc":   {"salloc", "qsub"},
		"run":     {"srun", "start", "submit", "sbatch", "mpirun", "mpiexec", "launch"},
		"logs":    {"log", "attach", "output"},
		"nodes":   {"sinfo", "hosts"},
		"node":    {"scontrol"},
		"top":     {"htop", "watch"},
		"record":  {"trace", "perf"},
		"metrics": {"prometheus", "exporter", "stats"},
		"ext":     {"extension", "extensions"},

		"backtrace": {"stack", "stacks", "pstack", "bt", "where"},
		"debug":     {"gdb", "debugger"},
	},
	"margay machine": {
		"list":    {"ls", "ps"},
		"status":  {"show", "info"},
		"up":      {"create", "make", "new", "start"},
		"down":    {"rm", "remove", "delete", "destroy", "stop", "kill", "end"},
		"logs":    {"log"},
		"grow":    {"add", "extend", "scale"},
		"shrink":  {"reduce"},
		"restart": {"reboot"},
	},
	"margay machine token": {
		"create": {"new", "add", "make"},
		"list":   {"ls", "show"},
		"revoke": {"rm", "remove", "delete"},
	},
	"margay node": {
		"drain":  {"down", "offline", "disable", "out"},
		"resume": {"undrain", "up", "online", "enable", "in"},
		"reboot": {"reset", "restart", "start", "replace"},
		"power":  {"ipmi", "poweron", "poweroff"},
		"update": {"upgrade", "kexec", "image"},
	},
	"margay node power": {
		"on":     {"up", "start", "wake"},
		"off":    {"down", "stop", "fence", "kill", "shutdown"},
		"reset":  {"cycle", "reboot", "restart"},
		"status": {"show", "list", "state", "stat"},
	},
	"margay ext": {
		"list":   {"ls", "ps", "show"},
		"remove": {"rm", "delete", "del", "unload", "detach", "kill"},
		"insert": {"add", "load", "install", "attach"},
		"log":    {"logs"},
		"stats":  {"top"},
	},
	"margay image": {
		"list":  {"ls", "show"},
		"build": {"make", "create"},
	},
}

// closeGroups makes each group of commands refuse other names. Without that cobra prints help and
// succeeds.
func closeGroups(c *cobra.Command) {
	for _, sub := range c.Commands() {
		sub.SuggestFor = append(sub.SuggestFor, otherNames[c.CommandPath()][sub.Name()]...)
		closeGroups(sub)
	}
	if c.Runnable() {
		return
	}
	c.Args = cobra.ArbitraryArgs
	c.FParseErrWhitelist.UnknownFlags = true // the flags of an unknown command
	c.RunE = refuse
}

// refuse is what a group does when none of its commands was named.
func refuse(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		var names []string
		for _, sub := range c.Commands() {
			if sub.IsAvailableCommand() {
				names = append(names, sub.Name())
			}
		}
		return fmt.Errorf("%s needs a command: %s (%s --help)", command.Called(c), strings.Join(names, ", "), c.CommandPath())
	}
	name := args[0]
	if c.HasParent() {
		name = command.Called(c) + " " + name
	}
	if meant := suggestions(c, args[0]); len(meant) > 0 {
		return fmt.Errorf("%s: there is no such command; did you mean %s?", name, strings.Join(meant, " or "))
	}
	return fmt.Errorf("%s: there is no such command (%s --help)", name, c.CommandPath())
}

// suggestions are the commands that a user may mean by a name that group does not have: those that
// are called so elsewhere, in another group or on another system, else those with a similar name.
func suggestions(group *cobra.Command, name string) (meant []string) {
	for _, sub := range group.Commands() {
		if sub.IsAvailableCommand() && slices.Contains(sub.SuggestFor, name) {
			meant = append(meant, sub.CommandPath())
		}
	}
	if len(meant) == 0 {
		meant = namesakes(group.Root(), name)
	}
	if len(meant) > 0 {
		return meant
	}
	group.SuggestionsMinimumDistance = max(1, min(2, len(name)/2), len(name)/3)
	for _, similar := range group.SuggestionsFor(name) {
		meant = append(meant, group.CommandPath()+" "+similar)
	}
	return meant
}

// namesakes finds all commands of a name.
func namesakes(c *cobra.Command, name string) (paths []string) {
	for _, sub := range c.Commands() {
		if sub.Name() == name && sub.IsAvailableCommand() {
			paths = append(paths, sub.CommandPath())
		}
		paths = append(paths, namesakes(sub, name)...)
	}
	return paths
}

// helpCommand prints the help of a command, and refuses other names.
func helpCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "help [COMMAND...]",
		Short:   "Print the help of a command",
		Example: "  margay help machine up",
		RunE: func(c *cobra.Command, args []string) error {
			about, rest, err := c.Root().Find(args)
			if err != nil {
				return err
			}
			if about.HasSubCommands() && len(rest) > 0 {
				return refuse(about, rest)
			}
			about.InitDefaultHelpFlag()
			return about.Help()
		},
		ValidArgsFunction: func(c *cobra.Command, args []string, _ string) (names []string, _ cobra.ShellCompDirective) {
			about, _, err := c.Root().Find(args)
			if err != nil {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			for _, sub := range about.Commands() {
				if sub.IsAvailableCommand() {
					names = append(names, cobra.CompletionWithDesc(sub.Name(), sub.Short))
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
	}
}
