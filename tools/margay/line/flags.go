package line

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"margay/internal/printable"
	"margay/tools/margay/command"
)

// flagError words the errors of pflag.
func flagError(c *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	var empty *pflag.ValueRequiredError
	var invalid *pflag.InvalidValueError
	switch {
	case errors.As(err, &unknown) && command.Called(c) == "nodes" && isTime(unknown.GetSpecifiedShortnames()):
		return fmt.Errorf("nodes: --noise -%s: it must be more than 0; without the flag it is the default (margay nodes --help)",
			unknown.GetSpecifiedShortnames())
	case errors.As(err, &unknown):
		name := "--" + unknown.GetSpecifiedName()
		if unknown.GetSpecifiedShortnames() != "" {
			name = "-" + unknown.GetSpecifiedName()
		}
		if hint := foreign(c, name, unknown.GetSpecifiedShortnames()); hint != "" {
			return fmt.Errorf("%s has no %s: %s", command.Called(c), name, hint)
		}
		return fmt.Errorf("%s has no %s: %s --help lists its flags%s", command.Called(c), name, c.CommandPath(), similarFlag(c, unknown.GetSpecifiedName()))
	case errors.As(err, &empty):
		return fmt.Errorf("%s: %s needs a value: %s", command.Called(c), command.FlagName(empty.GetFlag()), empty.GetFlag().Usage)
	case errors.As(err, &invalid):
		return fmt.Errorf("%s: %s %s: %s", command.Called(c), command.FlagName(invalid.GetFlag()), invalid.GetValue(), invalidValue(invalid))
	}
	return fmt.Errorf("%s: %w", command.Called(c), err)
}

// foreign names the equivalent of a flag of other programs. letters holds all letters that look
// like flags of one letter.
func foreign(c *cobra.Command, name, letters string) string {
	switch command.Called(c) {
	case "run":
		return foreignFlags[name]
	case "kill":
		if sig, err := command.ParseSignal(letters); err == nil {
			return fmt.Sprintf("-s %s names the signal", strings.TrimPrefix(printable.Signal(sig), "SIG"))
		}
	case "record":
		if c.Flags().NArg() > 0 {
			return "a command and its flags come after --: margay record -- margay run -n 2 ./a.out"
		}
	}
	return ""
}

// isTime reports whether a text is a time with its unit. After a dash it looks like flags of one
// letter.
func isTime(text string) bool {
	_, err := time.ParseDuration(text)
	return err == nil
}

func invalidValue(err *pflag.InvalidValueError) string {
	var number *strconv.NumError
	switch f := err.GetFlag(); {
	case f.Name == "ranks" && strings.HasPrefix(err.GetValue(), "p"):
		return "-np is two flags here: write -n for the number of ranks"
	case f.Value.Type() == "duration":
		return "it must be a time with its unit, such as 500ms, 10s or 2m"
	case errors.As(err, &number) && errors.Is(number, strconv.ErrRange):
		return "it is too large a number"
	case strings.HasPrefix(f.Value.Type(), "uint"):
		return "it must be a whole number that is not negative"
	case f.Value.Type() == "bool":
		return "it must be true or false"
	case errors.As(err, &number):
		return "it must be a whole number"
	}
	return err.Unwrap().Error()
}

// similarFlag names the flag that a user may have meant.
func similarFlag(c *cobra.Command, name string) (hint string) {
	c.Flags().VisitAll(func(f *pflag.Flag) {
		if len(name) > 2 && !f.Hidden && (strings.HasPrefix(f.Name, name) || strings.HasPrefix(name, f.Name)) {
			hint = fmt.Sprintf("; did you mean --%s?", f.Name)
		}
	})
	return hint
}

// foreignFlags are flags of other launchers, with what does the same here.
var foreignFlags = map[string]string{
	"--np":              "-n is the number of ranks",
	"--ntasks":          "-n is the number of ranks",
	"--ntasks-per-node": "--ppn is the number of ranks of each node",
	"--npernode":        "--ppn is the number of ranks of each node",
	"--ntasks-per-core": "--per-core is the number of ranks that share a core",
	"-H":                "-w names the nodes",
	"--host":            "-w names the nodes",
	"--hostfile":        "-w names the nodes; margay machine up makes them",
	"--timeout":         "--time limits how long the job may run",
	"-D":                "--chdir DIR is the working directory of the ranks",
	"--cwd":             "--chdir DIR is the working directory of the ranks",
	"--workdir":         "--chdir DIR is the working directory of the ranks",
	"-i":                "the shell's <FILE is the standard input of rank 0, or of all with --stdin all",
	"--input":           "the shell's <FILE is the standard input of rank 0, or of all with --stdin all",
	"--mem":             "--memory limits the job on each node, in MiB",
	"--pty":             "ranks have no terminal yet",
}
