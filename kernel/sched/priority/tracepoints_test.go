//go:build !guest

package priority

import "testing"

// Only a field of this name, type and size has an offset.
func TestOffsetOf(t *testing.T) {
	const format = "name: sched_waking\nID: 331\nformat:\n" +
		"\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n" +
		"\tfield:char comm[16];\toffset:8;\tsize:16;\tsigned:0;\n" +
		"\tfield:pid_t pid;\toffset:24;\tsize:4;\tsigned:1;\n" +
		"\tfield:long state;\toffset:32;\tsize:8;\tsigned:1;\n" +
		"\tfield:int wide;\toffset:40;\tsize:8;\tsigned:1;\n" +
		"\tfield:int broken;\toffset:-4;\tsize:4;\tsigned:1;\n\n" +
		"print fmt: \"comm=%s pid=%d\", REC->comm, REC->pid\n"
	for field, want := range map[string]int{"pid": 24, "common_pid": 4, "id": 0, "state": 0, "wide": 0, "broken": 0} {
		if got, ok := offsetOf(field, format); got != want || ok != (want > 0) {
			t.Errorf("%s is at %d, %v, want %d", field, got, ok, want)
		}
	}
}
