// Command histogram counts the words of a text on all nodes of a job.
//
//	margay run -n 8 --with FILE ./histogram [-capacity ENTRIES] [-pause] [-time] FILE
//
// Each rank counts the words of its share of the text. It sends every word with its count as an
// active message to the word's owner, a rank given by the word's hash. There the extension
// accumulate adds the count to a table in the node kernel or on the node's network interface, while
// the rank sleeps. Finally the first rank of each node reads its node's table and sends the result
// to rank 0, which prints it.
//
// With -pause the ranks send no word before rank 0 has read a line of its standard input, so that
// `margay ext list` can show where the extension runs. With -time rank 0 prints the processor time
// of the ranks for a message.
package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"margay/examples/histogram/words"
	"margay/ext/message/accumulate"
	"margay/lib/margay"
)

// The messages of this program.
const (
	countWord = iota // for the extension; payload: a word, first argument: its count
	allSent          // to the first rank of each node; first argument: how many words this rank has sent to that node
	nodeTotal        // to rank 0; payload: totals
	nodeTop          // to rank 0; payload: a word, first argument: its count
)

func main() {
	var o options
	flag.IntVar(&o.capacity, "capacity", 1<<16, "entries of the table on each node, a power of two")
	flag.BoolVar(&o.pauses, "pause", false, "wait for a line of standard input before the words are sent")
	flag.BoolVar(&o.timed, "time", false, "print the processor time of the ranks for a message")
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: histogram [-capacity ENTRIES] [-pause] [-time] FILE")
		os.Exit(2)
	}
	o.path = flag.Arg(0)
	if err := run(o); err != nil {
		fmt.Fprintln(os.Stderr, "histogram:", err)
		os.Exit(1)
	}
}

type options struct {
	path          string
	capacity      int
	pauses, timed bool
}

func run(o options) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	job, err := margay.Init()
	if err != nil {
		return err
	}
	r := &rank{job: job, sent: make(map[int]uint64), handled: make(map[int]uint64)}
	job.Handle(allSent, r.onAllSent)
	job.Handle(nodeTotal, r.onNodeTotal)
	job.Handle(nodeTop, r.onNodeTop)
	if job.LocalRank() == 0 {
		if err := r.insert(o.capacity); err != nil {
			return err
		}
	}
	if err := job.Barrier(ctx); err != nil { // every node has the extension now
		return err
	}
	counts, err := r.count(o.path)
	if err != nil {
		return err
	}
	all := []uint64{0} // words of the text
	for _, n := range counts {
		all[0] += *n
	}
	if err := margay.AllReduce(ctx, job, all, all, margay.Sum); err != nil {
		return err
	}
	if o.pauses {
		if err := r.awaitLine(ctx); err != nil {
			return err
		}
	}
	begin := processorTime()
	if err := r.send(ctx, counts); err != nil {
		return err
	}
	if err := job.Barrier(ctx); err != nil { // all words have been handled
		return err
	}
	spent := processorTime() - begin
	if job.LocalRank() == 0 {
		if err := r.report(ctx); err != nil {
			return err
		}
	}
	if job.Rank() == 0 {
		if err := r.print(ctx, all[0]); err != nil {
			return err
		}
	}
	if o.timed {
		if err := r.printTime(ctx, spent); err != nil {
			return err
		}
	}
	return job.Finalize(ctx)
}

// rank is what a rank knows.
type rank struct {
	job       *margay.Job
	extension *margay.Extension
	sent      map[int]uint64 // by node: words sent there

	// Of the first rank of a node.
	finished int    // ranks that have sent all their words
	expected uint64 // words that they have sent to this node

	// Of rank 0.
	nodes     int
	histogram words.Histogram
	messages  uint64
	handled   map[int]uint64 // by node
}

// insert inserts the extension into this node.
func (r *rank) insert(capacity int) (err error) {
	r.extension, err = r.job.Insert(margay.ExtensionSpec{
		Name: "accumulate", Object: accumulate.Object,
		Constants: map[string]uint64{accumulate.Capacity: uint64(capacity), accumulate.Handler: countWord},
		Entries:   map[string]uint32{accumulate.Table: uint32(capacity)},
	})
	return err
}

// count counts the words of this rank's share.
func (r *rank) count(path string) (map[string]*uint64, error) {
	text, err := mapText(path)
	if err != nil {
		return nil, err
	}
	counts := make(map[string]*uint64)
	begin, end := len(text)*r.job.Rank()/r.job.Size(), len(text)*(r.job.Rank()+1)/r.job.Size()
	words.Each(text, begin, end, func(word []byte) {
		if n := counts[string(word)]; n != nil {
			*n++
			return
		}
		one := uint64(1)
		counts[strings.Clone(string(word))] = &one
	})
	return counts, nil
}

// awaitLine waits until rank 0 has read a line.
func (r *rank) awaitLine(ctx context.Context) error {
	if r.job.Rank() == 0 {
		if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil && err != io.EOF {
			return err
		}
	}
	return r.job.Barrier(ctx)
}

// processorTime returns the processor time of this process.
func processorTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// send sends the words to their owners, and their number on each node to its first rank.
func (r *rank) send(ctx context.Context, counts map[string]*uint64) error {
	for word, n := range counts {
		owner := int(words.Hash([]byte(word)) % uint64(r.job.Size()))
		if err := r.job.Send(ctx, owner, countWord, [2]uint64{*n}, []byte(word)); err != nil {
			return err
		}
		r.sent[r.job.NodeOf(owner)]++
	}
	for leader := range r.job.Size() {
		if leader == 0 || r.job.NodeOf(leader) != r.job.NodeOf(leader-1) {
			if err := r.job.Send(ctx, leader, allSent, [2]uint64{r.sent[r.job.NodeOf(leader)]}, nil); err != nil {
				return err
			}
		}
	}
	return nil
}

func mapText(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || info.Size() == 0 {
		return nil, err
	}
	text, err := syscall.Mmap(int(f.Fd()), 0, int(info.Size()), syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map %s: %w", path, err)
	}
	return text, nil
}

func (r *rank) onAllSent(m margay.Message) {
	r.finished++
	r.expected += m.Args[0]
}

// report reads this node's table when all words have arrived, and sends it to rank 0.
func (r *rank) report(ctx context.Context) error {
	if err := r.job.WaitFor(ctx, func() bool { return r.finished == r.job.Size() }); err != nil {
		return err
	}
	totals, err := r.extension.State(accumulate.Totals)
	if err != nil {
		return err
	}
	sums, err := accumulate.ReadSums(totals.Bytes)
	if err != nil {
		return err
	}
	if err := sums.Err(); err != nil {
		return fmt.Errorf("node %d: %w (-capacity makes the table larger)", r.job.Node(), err)
	}
	if sums.Handled != r.expected {
		return fmt.Errorf("node %d: %d words were sent, %d handled", r.job.Node(), r.expected, sums.Handled)
	}
	table, err := r.extension.State(accumulate.Table)
	if err != nil {
		return err
	}
	var h words.Histogram
	accumulate.Each(table.Bytes, h.Add)
	for _, c := range h.Top {
		if err := r.job.Send(ctx, 0, nodeTop, [2]uint64{c.Count}, []byte(c.Word)); err != nil {
			return err
		}
	}
	text := fmt.Sprintf("%d %d %d %d %d", r.expected, sums.Handled, h.Words, h.Different, h.Fingerprint)
	return r.job.Send(ctx, 0, nodeTotal, [2]uint64{}, []byte(text))
}

func (r *rank) onNodeTop(m margay.Message) {
	r.histogram.AddTop(words.Count{Word: string(m.Payload), Count: m.Args[0]})
}

func (r *rank) onNodeTotal(m margay.Message) {
	var sent, handled, all, different, fingerprint uint64
	if _, err := fmt.Sscan(string(m.Payload), &sent, &handled, &all, &different, &fingerprint); err != nil {
		panic(err) // another rank of this program wrote it
	}
	r.nodes++
	r.messages += sent
	r.histogram.Words += all
	r.histogram.Different += different
	r.histogram.Fingerprint += fingerprint
	r.handled[m.Node] = handled
}

// printTime prints the processor time that the ranks have spent.
func (r *rank) printTime(ctx context.Context, spent time.Duration) error {
	all := []int64{int64(spent)}
	if err := margay.AllReduce(ctx, r.job, all, all, margay.Sum); err != nil {
		return err
	}
	if r.messages > 0 {
		fmt.Printf("%.2f us on the cores of the ranks for a message\n", float64(all[0])/1e3/float64(r.messages))
	}
	return nil
}

// print prints the histogram of all nodes, of a text with so many words.
func (r *rank) print(ctx context.Context, all uint64) error {
	if err := r.job.WaitFor(ctx, func() bool { return r.nodes == r.job.Nodes() }); err != nil {
		return err
	}
	if r.histogram.Words != all {
		return fmt.Errorf("%d words were counted, the text has %d", r.histogram.Words, all)
	}
	if err := r.histogram.Print(os.Stdout); err != nil {
		return err
	}
	var handled []string
	for _, node := range slices.Sorted(maps.Keys(r.handled)) {
		handled = append(handled, fmt.Sprintf("node%d %d", node, r.handled[node]))
	}
	fmt.Printf("%d messages sent and handled: %s\n", r.messages, strings.Join(handled, ", "))
	return nil
}
