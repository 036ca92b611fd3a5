package bench

import (
	"fmt"
	"strings"
	"testing"
)

// times are so many times in the order in which they were taken, the last the shortest: n*unit,
// ..., 2*unit, unit.
func times(n, unit int) string {
	var list []string
	for i := n; i > 0; i-- {
		list = append(list, fmt.Sprint(i*unit))
	}
	return "[" + strings.Join(list, ",") + "]"
}

// A program that says less than it was asked for is not believed.
func TestReadReport(t *testing.T) {
	for text, want := range map[string]string{
		"hello":                              "it has printed no report: ",
		`{"mechanisms": [{"name": "none"}]}`: "none: it reports 0 and 0 times of 2 messages",
		`{"mechanisms": [{"name": "one", "arrival_ns": ` + times(2, 1) + `, "sending_ns": ` + times(1, 1) + `}]}`: "one: it reports 2 and 1 times of 2 messages",
		`{"mechanisms": [{"name": "all", "arrival_ns": ` + times(2, 1) + `, "sending_ns": ` + times(2, 1) + `}]}`: "",
	} {
		if _, err := readReport([]byte(text), 2); want == "" && err != nil || want != "" && !strings.HasPrefix(fmt.Sprint(err), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// Figures cover all rounds, one row for each mechanism, in the order of the report.
func TestSchedFigures(t *testing.T) {
	const report = `{"mechanisms": [
		{"name": "b", "policy": "", "taken": 1, "arrival_ns": %[1]s, "sending_ns": %[2]s},
		{"name": "a", "policy": "Linux", "taken": 2, "arrival_ns": %[2]s, "sending_ns": %[3]s}],
		"switching": {"policy": "%[4]s", "rounds": [%[5]s]}, "results": 10, "different": 1}`
	hosted, virtual := &benchMachine{place: "hosted", scheduler: "priority"}, &benchMachine{place: "qemu", scheduler: "sched_ext"}
	s := new(schedFigures)
	for _, m := range []*benchMachine{hosted, virtual, hosted} {
		rounds := `{"switches": 10, "processor_ns": 100, "elapsed_ns": 500}, {"switches": 20, "processor_ns": 240, "elapsed_ns": -80},
			{"switches": 10, "processor_ns": 110, "elapsed_ns": 900}, {"switches": 0, "processor_ns": 7, "elapsed_ns": 7}`
		r, err := readReport(fmt.Appendf(nil, report, times(100, 10), times(100, 20), times(100, 30), "roundrobin", rounds), 100)
		if err != nil {
			t.Fatal(err)
		}
		s.add(m, r)
	}
	s.finish()
	var got []string
	for _, l := range s.Latencies {
		got = append(got, fmt.Sprintf("%s %s %s by %s: %d messages, %d %d, %d %d, taken %d",
			l.Mechanism, l.Policy, l.Place, l.DeliveredBy, l.Messages, l.P50, l.P99, l.SentP50, l.SentP99, l.Taken))
	}
	for _, c := range s.Switches {
		got = append(got, fmt.Sprintf("%s %s by %s: %d switches, %.1f %.1f", c.Policy, c.Place, c.EnforcedBy, c.Switches, c.Processor, c.Elapsed))
	}
	got = append(got, fmt.Sprintf("%d %d", s.Results, s.Different))
	want := []string{
		"b  hosted by a wake-up: 200 messages, 510 1000, 1020 2000, taken 2",
		"b  qemu by a wake-up: 100 messages, 510 1000, 1020 2000, taken 1",
		"a Linux hosted by a wake-up and Linux alone: 200 messages, 1020 2000, 1530 3000, taken 4",
		"a Linux qemu by a wake-up and Linux alone: 100 messages, 1020 2000, 1530 3000, taken 2",
		"roundrobin hosted by priorities, by the node kernel: 80 switches, 11.0 0.0", // in all it is lost in noise
		"roundrobin qemu by sched_ext, inside Linux: 40 switches, 11.0 0.0",
		"30 3",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
