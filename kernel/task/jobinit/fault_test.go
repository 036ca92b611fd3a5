package jobinit

import "testing"

func TestPlaceOfDumps(t *testing.T) {
	for _, k := range []struct {
		pattern string
		pid     bool // core_uses_pid
		want    string
	}{
		{"core\n", false, "/work/core"},
		{"core\n", true, "/work/core.7"},
		{"core.%p", true, "/work/core.7"},
		{"/dev/dumps/%p\n", false, "/dev/dumps/7"},
		{"sub/%%core", false, "/work/sub/%core"},
		{"|/usr/lib/systemd/systemd-coredump %P", false, ""},
		{"@/run/dumps.socket", false, ""},
		{"core.%e", false, ""},
		{"\n", false, ""},
	} {
		d, err := placeOfDumps(k.pattern, k.pid, "/work")
		got := ""
		if err == nil {
			got = d.dir + "/" + d.file(7)
		}
		if got != k.want {
			t.Errorf("%q: %q, %v", k.pattern, got, err)
		}
	}
}
