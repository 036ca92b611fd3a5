package machine

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"margay/cluster/control"
	"margay/cluster/permit"
	"margay/internal/printable"
	"margay/tools/margay/command"
	"margay/tools/margay/show"
)

// userFlags are the flags that let other users in.
type userFlags struct {
	users, administrators string
	cores, jobs, output   int
}

func (u *userFlags) define(f *pflag.FlagSet) {
	f.StringVar(&u.users, "users", "", "let these `users` of this host in, to run jobs: names or numbers with commas between them; @NAME is a group")
	f.StringVar(&u.administrators, "admins", "", "let these `users` in, with the rights of the owner; written as --users")
	f.IntVar(&u.cores, "limit-cores", 0, "how many cores the jobs of one of the --users may have at a time (default: any number)")
	f.IntVar(&u.jobs, "limit-jobs", 0, "how many jobs one of the --users may have at a time (default: any number)")
	f.IntVar(&u.output, "limit-output", 0, fmt.Sprintf("how many `MiB` of the output of detached jobs are kept for one of the --users (default: %d)", permit.DefaultOutput))
}

// policy returns what the flags say.
func (u *userFlags) policy(c *cobra.Command) (p permit.Policy, err error) {
	if err := command.Given(c, "users", "admins"); err != nil {
		return p, err
	}
	if err := command.Positive(c, "limit-cores", "limit-jobs", "limit-output"); err != nil {
		return p, err
	}
	p.Cores, p.Jobs, p.Output = u.cores, u.jobs, u.output
	for _, list := range []struct {
		flag, text string
		members    *permit.Members
	}{{"users", u.users, &p.Users}, {"admins", u.administrators, &p.Administrators}} {
		if list.text == "" {
			continue
		}
		if *list.members, err = permit.ParseMembers(list.text); err != nil {
			return p, fmt.Errorf("%s: --%s: %w", command.Called(c), list.flag, err)
		}
	}
	return p, nil
}

// letsIn returns the lines of margay machine status about users and administrators.
func letsIn(m *control.MachineStatus) (text string) {
	for _, list := range []struct{ what, who string }{{"users", m.Users}, {"administrators", m.Administrators}} {
		if list.who != "" {
			text += fmt.Sprintf("%s: %s\n", list.what, printable.Line(list.who))
		}
	}
	if m.LimitCores > 0 {
		text += fmt.Sprintf("cores of a user at a time: %d\n", m.LimitCores)
	}
	if m.LimitJobs > 0 {
		text += fmt.Sprintf("jobs of a user at a time: %d\n", m.LimitJobs)
	}
	if m.LimitOutput > 0 {
		text += fmt.Sprintf("kept output of a user: %d MiB\n", m.LimitOutput)
	}
	if m.Listen != "" {
		text += fmt.Sprintf("other hosts: %s\n", printable.Line(m.Listen))
	}
	if text != "" {
		text += fmt.Sprintf("you: %s\n", printable.Line(m.Role))
	}
	return text
}

func (a commands) auditCommand() *cobra.Command {
	return a.JSONFlag(&cobra.Command{
		Use:   "audit",
		Short: "List the requests that a machine has refused to users",
		Long: `List the requests that a machine has refused to its users (margay machine up --users), the connections of others, and the machines
that have shown the token of a node (margay node token). A machine keeps about the last ten thousand. When one user makes more than a hundred in a row, most of them are only counted.`,
		Example: "  margay machine audit -m lab\n  margay machine audit --json | jq -r '.lines[].user'",
		Args:    command.NoArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			audit, err := command.Ask[*control.Audit](c.Context(), a.App, &control.ReadAudit{})
			if err != nil {
				return err
			}
			if a.JSON {
				return show.Message(a.Stdout, audit)
			}
			t := a.Table("TIME", "USER", "UID", "REQUEST", "OBJECT")
			for _, l := range audit.Lines {
				if l.Omitted > 0 {
					t.Row("", printable.Line(l.User), l.Uid, fmt.Sprintf("%d others", l.Omitted), "")
				}
				if l.Request != "" {
					t.Row(time.Unix(0, l.TimeNs).Format(time.DateTime), printable.Line(l.User), l.Uid, printable.Line(l.Request), printable.Line(l.Object))
				}
			}
			return t.Flush()
		},
	})
}
