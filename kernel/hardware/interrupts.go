package hardware

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"margay/kernel/abi/id"
)

// Interrupts are the counts of /proc/interrupts: how often each row has interrupted each CPU since
// boot.
type Interrupts struct {
	cpus []id.CPU
	rows map[string][]uint64 // by row name, in the order of cpus
}

// ReadInterrupts reads the counts as they are now.
func ReadInterrupts() (Interrupts, error) {
	f, err := os.Open("/proc/interrupts")
	if err != nil {
		return Interrupts{}, fmt.Errorf("hardware: %w", err)
	}
	defer f.Close()
	return parseInterrupts(f)
}

// Row is one cause of interrupts and how often it struck.
type Row struct {
	Name  string
	Count uint64
}

// Since returns the rows that struck cpu between before and n, those with the highest counts first,
// and their sum.
func (n Interrupts) Since(before Interrupts, cpu id.CPU) (sum uint64, rows []Row) {
	column := -1
	for i, c := range n.cpus {
		if c == cpu {
			column = i
		}
	}
	if column < 0 {
		return 0, nil
	}
	for name, counts := range n.rows {
		count := counts[column]
		if old := before.rows[name]; column < len(old) {
			count -= old[column]
		}
		if count > 0 {
			sum += count
			rows = append(rows, Row{Name: name, Count: count})
		}
	}
	slices.SortFunc(rows, func(a, b Row) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), strings.Compare(a.Name, b.Name))
	})
	return sum, rows
}

func parseInterrupts(r io.Reader) (Interrupts, error) {
	n := Interrupts{rows: make(map[string][]uint64)}
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	if !lines.Scan() {
		return n, fmt.Errorf("hardware: /proc/interrupts is empty: %w", lines.Err())
	}
	for word := range strings.FieldsSeq(lines.Text()) {
		cpu, err := strconv.Atoi(strings.TrimPrefix(word, "CPU"))
		if err != nil {
			return n, fmt.Errorf("hardware: /proc/interrupts: column %q", word)
		}
		n.cpus = append(n.cpus, id.CPU(cpu))
	}
	for lines.Scan() {
		name, rest, ok := strings.Cut(lines.Text(), ":")
		if !ok {
			continue
		}
		words := strings.Fields(rest)
		counts := make([]uint64, 0, len(n.cpus))
		for _, word := range words[:min(len(words), len(n.cpus))] {
			count, err := strconv.ParseUint(word, 10, 64)
			if err != nil {
				break
			}
			counts = append(counts, count)
		}
		// Rows with one number (ERR, MIS) are not counted by CPU.
		if len(counts) == len(n.cpus) && len(counts) > 0 {
			label := strings.TrimSpace(name)
			if len(words) > len(n.cpus) {
				label += " " + strings.Join(words[len(n.cpus):], " ")
			}
			n.rows[label] = counts
		}
	}
	return n, lines.Err()
}
