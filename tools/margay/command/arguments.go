package command

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// NoArguments is for commands that take flags only.
var NoArguments = Arguments(0, 0)

// Arguments checks how many arguments a command is given; most is -1 for any number.
func Arguments(least, most int) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		switch {
		case len(args) < least:
			return fmt.Errorf("%s: %s is missing: %s", Called(c), argumentName(c, len(args)), c.UseLine())
		case least > 0 && args[0] == "":
			return fmt.Errorf("%s: %s is empty: %s", Called(c), argumentName(c, 0), c.UseLine())
		case most == 0 && len(args) > 0:
			return fmt.Errorf("%s takes no arguments, but is given %q: %s", Called(c), args[0], c.UseLine())
		case most > 0 && len(args) > most:
			return fmt.Errorf("%s: %q is one argument too many: %s", Called(c), args[most], c.UseLine())
		}
		return nil
	}
}

// Called is how errors name a command. Its first word comes before them all.
func Called(c *cobra.Command) string { return strings.TrimPrefix(c.CommandPath(), "margay ") }

// argumentName is what a command's usage calls the argument that it needs after so many others.
func argumentName(c *cobra.Command, given int) string {
	for _, word := range strings.Fields(c.Use)[1:] {
		if strings.HasPrefix(word, "[") {
			continue
		}
		if given--; given < 0 {
			return strings.TrimSuffix(word, "...")
		}
	}
	return "an argument"
}

// FlagName names a flag as most write it.
func FlagName(f *pflag.Flag) string {
	if f.Shorthand != "" {
		return "-" + f.Shorthand
	}
	return "--" + f.Name
}

// Given refuses flags that were given and are empty, which stands for their default.
func Given(c *cobra.Command, names ...string) error {
	for _, name := range names {
		if f := c.Flags().Lookup(name); f.Changed && f.Value.String() == "" {
			return fmt.Errorf("%s: %s is empty; without the flag it is the default (%s --help)", Called(c), FlagName(f), c.CommandPath())
		}
	}
	return nil
}

// Positive refuses flags that were given and are not more than zero, or empty, which stands for
// their default, and numbers that no message has room for.
func Positive(c *cobra.Command, names ...string) error {
	for _, name := range names {
		f := c.Flags().Lookup(name)
		if !f.Changed {
			continue
		}
		if err := Given(c, name); err != nil {
			return err
		}
		text := f.Value.String()
		number, err := strconv.Atoi(text)
		if err == nil && number > math.MaxInt32 {
			return fmt.Errorf("%s: %s %s: it is too large a number", Called(c), FlagName(f), text)
		}
		if d, isTime := time.ParseDuration(text); err != nil && isTime == nil {
			number, err = int(d), nil
		}
		if err == nil && number <= 0 {
			return fmt.Errorf("%s: %s %s: it must be more than 0; without the flag it is the default (%s --help)",
				Called(c), FlagName(f), text, c.CommandPath())
		}
	}
	return nil
}

// Without refuses given flags that have no meaning, with the reason.
func Without(c *cobra.Command, why string, names ...string) error {
	for _, name := range names {
		if f := c.Flags().Lookup(name); f.Changed {
			return fmt.Errorf("%s: %s %s", Called(c), FlagName(f), why)
		}
	}
	return nil
}
