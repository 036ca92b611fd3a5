package slot

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Answers lists what an extension in the slot may answer, with its numbers, the default first.
func (r *Row) Answers() string {
	answers := []string{fmt.Sprintf("%s (%d)", r.Verdicts[r.Default], r.Default)}
	if r.Choices > 0 {
		answers = append(answers, fmt.Sprintf("%s (0 to %d)", r.Choice, r.Choices-1))
	}
	for _, v := range slices.Sorted(maps.Keys(r.Verdicts)) {
		if v != r.Default {
			answers = append(answers, fmt.Sprintf("%s (%d)", r.Verdicts[v], v))
		}
	}
	return strings.Join(answers, ", ")
}

// Markdown is the table for people: the page ext/SLOTS.md.
func Markdown() string {
	var b strings.Builder
	b.WriteString(`# Slots

Where an extension can be attached. This page is made from the table in kernel/abi/slot (` + "`make generate`" + `), which Margay goes
by; ` + "`margay ext slots`" + ` prints it. Contexts and verdicts in C are in [margay_ext.h](../kernel/abi/slot/margay_ext.h), where a verdict has
the prefix MARGAY_. A star marks the default, which applies without an extension and after a fault of one.

`)
	var later []string
	for _, r := range Table {
		if !r.Ready {
			later = append(later, fmt.Sprintf("| %s | %s |\n", r.Name, r.What))
			continue
		}
		fmt.Fprintf(&b, "## %s\n\n%s%s.\n\n", r.Name, strings.ToUpper(r.What[:1]), r.What[1:])
		fmt.Fprintf(&b, "| | |\n|---|---|\n")
		fmt.Fprintf(&b, "| context | %d bytes, readable and writable |\n", r.Context)
		fmt.Fprintf(&b, "| changes that take effect | %s |\n", cmp.Or(r.Out, "nothing"))
		fmt.Fprintf(&b, "| verdicts | %s |\n", strings.Replace(r.Answers(), ")", ")*", 1))
		fmt.Fprintf(&b, "| whose | %s |\n", r.Owners)
		fmt.Fprintf(&b, "| services | %s |\n", strings.Join(r.Services, ", "))
		fmt.Fprintf(&b, "| budget of a run | %d instructions, %v |\n", r.Fuel, r.Time)
		fmt.Fprintf(&b, "| faults until it is removed | %d |\n\n", FaultLimit)
		if r.Notes != "" {
			fmt.Fprintf(&b, "%s\n", r.Notes)
		}
	}
	fmt.Fprintf(&b, "## Later\n\n| | |\n|---|---|\n%s", strings.Join(later, ""))
	return b.String()
}
