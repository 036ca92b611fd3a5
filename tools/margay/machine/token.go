package machine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"margay/cluster/client"
	"margay/cluster/control"
	"margay/internal/printable"
	"margay/tools/margay/command"
	"margay/tools/margay/show"
)

func (a commands) tokenCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "token",
		Short: "Create, list and revoke the tokens of users on other hosts",
		Long: `Create, list and revoke tokens, with which users of other hosts reach a machine that listens to them (margay machine up --listen).
A token stands for a user of the machine, and admits to what the user may do: the owner, or one of --users and --admins. It
carries the fingerprint of the machine, so margay login trusts no other one. The machine keeps a hash of it, and forgets it when it goes
down.`,
	}
	c.AddCommand(a.tokenCreateCommand(), a.tokenListCommand(), a.tokenRevokeCommand())
	return c
}

// The roles of tokens.
const (
	roleUser          = "user"
	roleAdministrator = "administrator"
)

func (a commands) tokenCreateCommand() *cobra.Command {
	life, role := lifeFlag(30*day), roleUser
	c := a.QuietFlag(&cobra.Command{
		Use:   "create [USER]",
		Short: "Create a token for yourself or another user, and print it",
		Long: `Create a token for a user of the machine, by default for yourself, and print it. It cannot be printed again. Give it to the user as
secretly as a password: on the other host, margay login takes it.

The owner and administrators create tokens, on the host of the machine.`,
		Example: `  margay machine token create
  margay machine token create bob --expires 8h -m lab
  margay machine token create --role administrator`,
		Args: command.Arguments(0, 1),
		RunE: func(c *cobra.Command, args []string) error {
			if role != roleUser && role != roleAdministrator {
				return fmt.Errorf("machine token create: --role %s: it is %s or %s", role, roleUser, roleAdministrator)
			}
			m := &control.CreateToken{
				User: client.UserName(), Uid: uint32(os.Getuid()), Administrator: role == roleAdministrator, LifeNs: int64(life),
			}
			if len(args) > 0 {
				m.Whom = args[0]
			}
			t, err := command.Ask[*control.Token](c.Context(), a.App, m)
			if err != nil {
				return err
			}
			if _, err := fmt.Fprintln(a.Stdout, printable.Line(t.Text)); err != nil {
				return err
			}
			a.Report("token %d of %s is valid until %s; on the other host: margay login %s", t.Number, printable.Line(t.User),
				time.Unix(0, t.ExpiresNs).Format(time.DateTime), a.listenAddress(c.Context()))
			return nil
		},
	})
	c.Flags().Var(&life, "expires", "how long it is valid, in days or hours: 30d or 8h")
	c.Flags().StringVar(&role, "role", role, "the most that it admits to: user or administrator")
	return c
}

// listenAddress returns where the machine listens to other hosts, as these may name it.
func (a commands) listenAddress(ctx context.Context) string {
	status, err := command.Ask[*control.MachineStatus](ctx, a.App, &control.Status{})
	if err != nil {
		return "HOST:PORT"
	}
	return reachable(status.Listen, os.Hostname)
}

// reachable replaces an address that stands for all of this host by the host's name.
func reachable(listen string, hostname func() (string, error)) string {
	own, err := netip.ParseAddrPort(listen)
	if err != nil || !own.Addr().IsUnspecified() {
		return listen
	}
	name, err := hostname()
	if err != nil {
		name = "HOST"
	}
	return net.JoinHostPort(name, strconv.Itoa(int(own.Port())))
}

func (a commands) tokenListCommand() *cobra.Command {
	return a.JSONFlag(&cobra.Command{
		Use:     "list",
		Short:   "List the tokens of a machine",
		Example: "  margay machine token list -m lab",
		Args:    command.NoArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			tokens, err := command.Ask[*control.Tokens](c.Context(), a.App, &control.ListTokens{})
			if err != nil {
				return err
			}
			if a.JSON {
				return show.Message(a.Stdout, tokens)
			}
			t := a.Table("TOKEN", "USER", "UID", "ROLE", "CREATED", "BY", "EXPIRES")
			for _, token := range tokens.Tokens {
				expires := time.Unix(0, token.ExpiresNs)
				text := expires.Format(time.DateTime)
				if !time.Now().Before(expires) {
					text = "has expired"
				}
				role := roleUser
				if token.Administrator {
					role = roleAdministrator
				}
				t.Row(token.Number, printable.Line(token.User), token.Uid, role, time.Unix(0, token.CreatedNs).Format(time.DateTime), cmp.Or(printable.Line(token.Creator), "-"), text)
			}
			return t.Flush()
		},
	})
}

func (a commands) tokenRevokeCommand() *cobra.Command {
	return a.VerboseFlag(&cobra.Command{
		Use:   "revoke TOKEN...",
		Short: "Revoke tokens, by their numbers",
		Long: `Revoke tokens, by their numbers (margay machine token list). Connections with them end at once, and their jobs with them, but for
detached ones.`,
		Example: "  margay machine token revoke 3",
		Args:    command.Arguments(1, -1),
		RunE: func(c *cobra.Command, args []string) error {
			m := new(control.RevokeTokens)
			for _, text := range args {
				number, err := strconv.ParseUint(text, 10, 32)
				if err != nil || number == 0 {
					return errors.New("machine token revoke: a token is named by its number (margay machine token list)")
				}
				m.Tokens = append(m.Tokens, uint32(number))
			}
			if _, err := command.Ask[*control.Done](c.Context(), a.App, m); err != nil {
				return err
			}
			a.Detail("revoked")
			return nil
		},
	})
}

const day = 24 * time.Hour

// lifeFlag is how long a token is valid.
type lifeFlag time.Duration

func (f *lifeFlag) Set(text string) error {
	number, days := strings.CutSuffix(text, "d")
	if n, err := strconv.ParseUint(number, 10, 16); days && err == nil && n > 0 {
		*f = lifeFlag(time.Duration(n) * day)
		return nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		return errors.New("it is a number of days or hours: 30d or 8h")
	}
	*f = lifeFlag(d)
	return nil
}

func (f *lifeFlag) String() string {
	if d := time.Duration(*f); d%day != 0 {
		return d.String()
	}
	return fmt.Sprintf("%dd", time.Duration(*f)/day)
}

func (f *lifeFlag) Type() string { return "time" }
