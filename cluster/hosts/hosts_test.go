package hosts

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]string{
		"a":                          "a",
		"b,a":                        "b a",
		"n[1-3]":                     "n1 n2 n3",
		"n[08-10,2].org,x":           "n08.org n09.org n10.org n2.org x",
		"r[1-2]n[01-02]":             "r1n01 r1n02 r2n01 r2n02",
		"10.0.0.[1-2],user@10.0.0.3": "10.0.0.1 10.0.0.2 user@10.0.0.3",
		"n[007]":                     "n007",
	} {
		if got, err := Parse(text); err != nil || strings.Join(got, " ") != want {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
	for text, want := range map[string]string{
		"":                          `"" is not the name of a host`,
		"a,":                        `"" is not the name of a host`,
		"a,b,a":                     "a is in the list twice",
		"n[1-3],n2":                 "n2 is in the list twice",
		"n[1-3":                     "its brackets do not match",
		"n]1":                       `"n]1" is not the name of a host`,
		"n[]":                       `"" in brackets is not a number`,
		"n[3-1]":                    `"3-1" in brackets is not a number or a range`,
		"n[a-b]":                    `"a-b" in brackets is not`,
		"n[1-4294967295]":           `"1-4294967295" in brackets is not`,
		"n[1-1001]":                 "it names more than 1000 hosts",
		"n[1-40]m[1-40]":            "it names more than 1000 hosts",
		"n[1-999],a,b":              "it names more than 1000 hosts",
		"-oProxyCommand=x":          `"-oProxyCommand=x" is not the name of a host`,
		"a;reboot":                  `"a;reboot" is not the name of a host`,
		"a b":                       `"a b" is not the name of a host`,
		strings.Repeat("n[1]", 200): "it is longer than 512 bytes",
	} {
		if got, err := Parse(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
}

func TestParseFile(t *testing.T) {
	got, err := ParseFile("# of the batch system\n\na slots=4\nb:2\na\n  n[1-2]  max_slots=1\r\n")
	if err != nil || !slices.Equal(got, []string{"a", "b", "n1", "n2"}) {
		t.Errorf("%v, %v", got, err)
	}
	for text, want := range map[string]string{
		"# nothing\n":            "it names no host",
		"a\n!b\n":                `line 2: "!b" is not the name of a host`,
		"n[1-600]\nm[1-600]\n":   "it names more than 1000 hosts",
		strings.Repeat("a", 300): "is not the name of a host",
	} {
		if got, err := ParseFile(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
}

// A launcher gets the host before the program, and no word that a shell on the way would change.
func TestCommand(t *testing.T) {
	l, err := ParseLauncher(" ssh  -p 22 ")
	if err != nil {
		t.Fatal(err)
	}
	got, err := l.Command("a", "/opt/margay/nodekernel", "start", "10.0.0.1:7117")
	if err != nil || strings.Join(got, " ") != "ssh -p 22 a /opt/margay/nodekernel start 10.0.0.1:7117" {
		t.Errorf("%v, %v", got, err)
	}
	for _, program := range []string{"/my programs/x", "$(reboot)", "a;b", "", "a'b"} {
		if got, err := l.Command("a", program); err == nil {
			t.Errorf("%q: %v", program, got)
		}
	}
	if got, err := l.Command("-v", "x"); err == nil {
		t.Error(got)
	}
	if got, err := ParseLauncher(" "); err == nil {
		t.Error(got)
	}
}

func TestAllocation(t *testing.T) {
	files := map[string]string{"/var/pbs": "a\na\nb\n", "/var/odd": "!\n"}
	for _, k := range []struct {
		env  map[string]string
		want string
	}{
		{nil, "<nil> <nil>"},
		{map[string]string{"SLURM_JOB_NODELIST": "n[1-2]"}, "<nil> <nil>"}, // srun's own setting elsewhere
		{map[string]string{"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]"}, "Slurm's job 7: [n1 n2] by srun, ends: true"},
		{map[string]string{"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n["}, `the hosts of Slurm's job 7 (SLURM_JOB_NODELIST): "n[": its brackets do not match`},
		{map[string]string{"PBS_JOBID": "9.s", "PBS_NODEFILE": "/var/pbs"}, "PBS job 9.s: [a b] by ssh, ends: false"},
		{map[string]string{"PBS_NODEFILE": "/var/none"}, "the hosts of the PBS job (PBS_NODEFILE): file does not exist"},
		{map[string]string{"PBS_NODEFILE": "/var/odd"}, `the hosts of the PBS job (/var/odd): line 1: "!" is not the name of a host`},
	} {
		s := Surroundings{
			Getenv: func(name string) string { return k.env[name] },
			ReadFile: func(path string) ([]byte, error) {
				text, ok := files[path]
				if !ok {
					return nil, fs.ErrNotExist
				}
				return []byte(text), nil
			},
		}
		a, err := s.Allocation()
		got := fmt.Sprint(a, " ", err)
		switch {
		case err != nil:
			got = err.Error()
		case a != nil:
			got = fmt.Sprintf("%s: %v by %s, ends: %v", a.Name, a.Hosts, a.Launcher[0], a.Ends)
		}
		if got != k.want {
			t.Errorf("%v: %s", k.env, got)
		}
	}
}

// The loopback address is chosen only if all hosts are this one. Numbers need no resolver.
func TestAddress(t *testing.T) {
	if a, err := Address([]string{"127.0.0.1", "root@127.0.0.2"}); err != nil || !a.IsLoopback() {
		t.Errorf("%v, %v", a, err)
	}
	// Without a route to the other host, there is no address to choose.
	if a, err := Address([]string{"127.0.0.1", elsewhere}); err == nil && a.IsLoopback() {
		t.Errorf("%v, %v", a, err)
	}
}

// Whatever a list or a file says, the result is names that can be passed to a launcher.
func FuzzLists(f *testing.F) {
	for _, text := range []string{"a", "n[1-3],m", "n[01-12]x[1,2]", "a\nb:2\n# c\n", "n[", "[1-1000][1-1000]", "n[1-3]\nn2"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for name, parse := range map[string]func(string) ([]string, error){"list": Parse, "file": ParseFile} {
			got, err := parse(text)
			if err != nil {
				continue
			}
			if len(got) == 0 || len(got) > Most {
				t.Fatalf("%s: %d hosts", name, len(got))
			}
			for _, host := range got {
				if err := Check(host); err != nil {
					t.Fatal(errors.Join(err, fmt.Errorf("in a %s", name)))
				}
			}
			slices.Sort(got)
			if len(slices.Compact(got)) != len(got) {
				t.Fatalf("%s: a host twice", name)
			}
		}
	})
}
