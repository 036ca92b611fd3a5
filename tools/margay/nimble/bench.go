package nimble

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"margay/nimble"
	"margay/nimble/bench"
	"margay/nimble/driver"
	"margay/nimble/engine/list"
	"margay/tools/margay/show"
)

// figure is one line of margay nimble bench, for programs.
type figure struct {
	Program          string  `json:"program"`
	Engine           string  `json:"engine"`
	Trusted          bool    `json:"trusted"`
	Instructions     uint64  `json:"instructions"`
	NsPerInstruction float64 `json:"ns_per_instruction"`
	NsPerRun         float64 `json:"ns_per_run"`
	NsToInsert       int64   `json:"ns_to_insert"`
	CodeBytes        int     `json:"code_bytes"`
	Error            string  `json:"error,omitempty"` // why there are no figures
}

func (a commands) nimbleBenchCommand() *cobra.Command {
	var only string
	var rounds int
	var stops time.Duration
	names := bench.Names()
	c := a.JSONFlag(&cobra.Command{
		Use:   "bench [PROGRAM...]",
		Short: "Measure the engines that are here",
		Long: `Measure the engines that are here, each with checked and with unchecked memory (trusted), by small programs: ` + strings.Join(names, ", ") + `.

In each round every engine has its turn; figures are medians of the rounds. A run includes the call from Go. Compare
figures of one measurement only. The engine linux, which does not count instructions, is measured if it is named.`,
		Example: `  margay nimble bench                          # every program on every engine
  margay nimble bench pick --engine=subroutine --json`,
		ValidArgs: names,
		Args:      cobra.OnlyValidArgs,
		RunE: func(_ *cobra.Command, args []string) error {
			if rounds < 1 {
				return fmt.Errorf("--rounds %d: at least one", rounds)
			}
			options, err := contenders(only)
			if err != nil {
				return err
			}
			if stops > 0 {
				return a.nimbleStops(options, stops)
			}
			var contenders []bench.Contender
			for _, o := range options {
				c := bench.Engine(o.Engine.Name(), o)
				c.Once = slices.ContainsFunc(list.Engines, func(e list.Entry) bool { return e.Name == c.Name && e.Sparing })
				contenders = append(contenders, c)
			}
			var figures []figure
			for _, p := range bench.Programs() {
				if len(args) > 0 && !slices.Contains(args, p.Name) {
					continue
				}
				for i, r := range p.Measure(contenders, bench.Plan{Rounds: rounds}) {
					figures = append(figures, newFigure(p.Name, options[i], r))
				}
			}
			return a.printFigures(figures)
		},
	})
	c.Flags().StringVar(&only, "engine", "", "only this engine")
	c.Flags().DurationVar(&stops, "stops", 0, "measure for so long, beside endless programs on every core, how fast the world stops, and nothing else")
	c.Flags().IntVar(&rounds, "rounds", 5, "how often each is measured")
	return c
}

// contenders are the engines to be measured, checked and trusted.
func contenders(only string) ([]nimble.Options, error) {
	services, err := driver.Services("test")
	if err != nil {
		return nil, err
	}
	var all []nimble.Options
	for _, entry := range list.Engines {
		e, err := entry.Make()
		if err != nil || only != "" && only != entry.Name || only == "" && entry.Sparing {
			continue
		}
		for _, trusted := range []bool{false, true} {
			all = append(all, nimble.Options{Engine: e, Services: services, Trusted: trusted})
		}
	}
	if len(all) == 0 {
		_, err = list.Find(only)
	}
	return all, err
}

func newFigure(program string, o nimble.Options, r bench.Result) figure {
	f := figure{
		Program: program, Engine: o.Engine.Name(), Trusted: o.Trusted, Instructions: r.Instructions,
		NsPerInstruction: r.PerInstruction(), NsPerRun: r.Run, NsToInsert: int64(r.Insert), CodeBytes: r.Size,
	}
	if r.Err != nil {
		f.Error = driver.OneLine(r.Err.Error())
	}
	return f
}

func (a commands) printFigures(figures []figure) error {
	if a.JSON {
		return show.Value(a.Stdout, figures)
	}
	t := show.NewTable(a.Stdout, "PROGRAM", "ENGINE", "MEMORY", "INSNS/RUN", "NS/INSN", "NS/RUN", "US TO INSERT", "BYTES")
	for _, f := range figures {
		memory := "checked"
		if f.Trusted {
			memory = "unchecked"
		}
		if f.Error != "" {
			t.Row(f.Program, f.Engine, memory, "n/a ("+f.Error+")")
			continue
		}
		t.Row(f.Program, f.Engine, memory, f.Instructions, fmt.Sprintf("%.2f", f.NsPerInstruction),
			fmt.Sprintf("%.1f", f.NsPerRun), fmt.Sprintf("%.1f", float64(f.NsToInsert)/1000), f.CodeBytes)
	}
	return t.Flush()
}
