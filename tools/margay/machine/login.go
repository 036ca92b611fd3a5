package machine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"margay/cluster/client"
	"margay/cluster/folder"
	"margay/cluster/login"
	"margay/cluster/trust"
	"margay/internal/machinename"
	"margay/tools/margay/command"
	"margay/tools/margay/show"
)

func (a commands) loginCommand() *cobra.Command {
	var file string
	c := a.QuietFlag(&cobra.Command{
		Use:   "login HOST:PORT",
		Short: "Use a machine of another host, with a token",
		Long: `Use a machine of another host that listens there (margay machine up --listen). It takes a token (margay machine token create on that
host): from the file of --token-file, else from the terminal, which does not show it, or from standard input. It is not given as an argument,
which other users of this host could read.

The connection is encrypted, and the token names the machine: nothing is sent to another one. The login has the name that the
machine has there, or that -m gives it. It is kept in a file that you alone can read, in the folder that MARGAY_STATE names, by default
margay in XDG_STATE_HOME or in ~/.local/state, until margay logout.

All commands take the name like the name of a machine of this host; programs, libraries and files of margay run travel from here. What
needs the files or processes of the machine is done on its own host: up, down, logs, console, and margay history.`,
		Example: `  margay login cluster.example.org:7118
  margay login cluster.example.org:7118 -m lab --token-file token
  margay run -m lab -n 8 ./app`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) > 1 || len(args) == 1 && trust.MayBeToken(args[0]) { // of two, one may be a part of a token
				return errors.New("login takes HOST:PORT only; a token given as an argument could be read by other users: revoke it (margay machine token revoke), and give the next one by --token-file or standard input")
			}
			return command.Arguments(1, 1)(c, args)
		},
		RunE: func(c *cobra.Command, args []string) error {
			if err := login.CheckAddress(args[0]); err != nil {
				return fmt.Errorf("login: %w", err)
			}
			name := ""
			if c.Flags().Changed("machine") {
				if name = a.Machine; !machinename.Valid(name) {
					return fmt.Errorf("login: %q is not a name for a machine of another host", name)
				}
			}
			text, err := a.readToken(c.Context(), file)
			if err != nil {
				return fmt.Errorf("login: %w", err)
			}
			ctx, cancel := context.WithTimeout(c.Context(), command.AnswerTimeout)
			defer cancel()
			l := login.Login{Address: args[0], Token: text, Since: time.Now().UTC().Truncate(time.Second)}
			if l.Machine, err = client.Login(ctx, l); err != nil {
				return fmt.Errorf("login: %w", err)
			}
			if !machinename.Valid(l.Machine) {
				return fmt.Errorf("login: %q is not a name for a machine: give it one with -m", l.Machine)
			}
			if name == "" {
				name = l.Machine
			}
			if here, err := folder.Of(name); err != nil || !errors.Is(here.Check(), folder.ErrNoMachine) {
				return fmt.Errorf("login: there is a machine %s on this host: give the other one a name with -m", name)
			}
			if err := login.Save(name, l); err != nil {
				return fmt.Errorf("login: %w", err)
			}
			a.Report("machine %s of %s is now %s here: margay run -m %[3]s", l.Machine, l.Address, name)
			return nil
		},
	})
	c.Flags().StringVar(&file, "token-file", "", "read the token from this `FILE`")
	return c
}

// readToken reads a token from a file, a terminal or standard input. An error does not quote it.
func (a commands) readToken(ctx context.Context, file string) (string, error) {
	var text []byte
	var err error
	switch terminal, is := show.FileOf(a.Stdin); {
	case file != "":
		var f *os.File
		if f, err = os.OpenFile(file, os.O_RDONLY|unix.O_NONBLOCK, 0); err == nil {
			text, err = readLine(f)
			f.Close()
		}
	case is && term.IsTerminal(int(terminal.Fd())):
		fmt.Fprint(a.Stderr, "Token: ")
		text, err = readHidden(ctx, int(terminal.Fd()))
		fmt.Fprintln(a.Stderr)
	default:
		text, err = readLine(a.Stdin)
	}
	if err != nil {
		return "", fmt.Errorf("read the token: %w", err)
	}
	token, err := trust.ParseToken(strings.TrimSpace(string(text)))
	if err != nil {
		return "", err
	}
	return token.String(), nil
}

// readHidden reads a line of a terminal that does not show it, and leaves the terminal as it was,
// also when a signal ends this command.
func readHidden(ctx context.Context, terminal int) ([]byte, error) {
	before, err := term.GetState(terminal)
	if err != nil {
		return nil, err
	}
	ctx, stop := command.Interruptible(ctx, unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	defer stop()
	type line struct {
		text []byte
		err  error
	}
	read := make(chan line, 1)
	go func() { // the end of the process ends it
		text, err := term.ReadPassword(terminal)
		read <- line{text, err}
	}()
	select {
	case l := <-read:
		return l.text, l.err
	case <-ctx.Done():
		return nil, errors.Join(context.Cause(ctx), term.Restore(terminal, before))
	}
}

// readLine reads as much as a token with blanks around it may have.
func readLine(r io.Reader) ([]byte, error) { return io.ReadAll(io.LimitReader(r, 1024)) }

func (a commands) logoutCommand() *cobra.Command {
	return a.VerboseFlag(&cobra.Command{
		Use:   "logout",
		Short: "Forget a machine of another host and its token",
		Long: `Forget a machine of another host, named by -m, and its token. The token stays valid until it expires or is revoked (margay machine
token revoke).`,
		Example: "  margay logout -m lab",
		Args:    command.NoArguments,
		RunE: func(*cobra.Command, []string) error {
			err := login.Remove(a.Machine)
			if errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("logout: machine %s: there is no login of this name (margay machine list)", a.Machine)
			}
			if err != nil {
				return fmt.Errorf("logout: %w", err)
			}
			a.Detail("machine %s is forgotten", a.Machine)
			return nil
		},
	})
}
