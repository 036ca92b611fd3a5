package root_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"margay/tools/margay/margaytest"
)

func TestArgumentsInWords(t *testing.T) {
	base := t.TempDir()
	t.Setenv("MARGAY_DIR", base)
	for line, want := range map[string]string{
		"run":                             "run: PROGRAM is missing: margay run [flags] PROGRAM [ARGUMENT...]",
		"kill":                            "kill: JOB is missing: margay kill JOB [flags]",
		"logs 1 2":                        `logs: "2" is one argument too many: margay logs JOB`,
		"ext insert":                      "ext insert: OBJECT is missing",
		"ext remove":                      "ext remove: NODE.HANDLE is missing",
		"nimble verify x.o":               `nimble verify takes no arguments, but is given "x.o": margay nimble verify [flags]; --elf x.o reads a file`,
		"top 7":                           `top takes no arguments, but is given "7"`,
		"run -n x hostname":               "run: -n x: it must be a whole number",
		"run -np 4 hostname":              "-np is two flags here: write -n for the number of ranks",
		"run -n 99999999999999999999 ls":  "-n 99999999999999999999: it is too large a number",
		"run -n 4294967297 ls":            "run: -n 4294967297: it is too large a number",
		"record --job 4294967303":         "record: --job 4294967303: it is too large a number",
		"kill --rank -1 5":                "kill: --rank -1: it must not be negative; without the flag all ranks get the signal",
		"kill -9 5":                       "kill has no -9: -s KILL names the signal",
		"debug":                           "debug: JOB is missing",
		"kill -TERM 5":                    "kill has no -T: -s TERM names the signal",
		"kill -z 5":                       "kill has no -z: margay kill --help lists its flags",
		"record margay run -n 2 hostname": "record has no -n: a command and its flags come after --: margay record -- margay run -n 2 ./a.out",
		"machine up --substrate hosted --profile sched": "machine up: --profile is for virtual nodes: hosted ones have the Linux of this host",
		"kill --rank 4294967296 5":                      "kill: --rank 4294967296: it is too large a number",
		"run --with= ls":                                "run: --with: an empty name; it copies a file or folder",
		"run --ppn":                                     "run: --ppn needs a value: ranks on each node",
		"run --init-timeout 5 ls":                       "--init-timeout 5: it must be a time with its unit, such as 500ms, 10s or 2m",
		"run --label=maybe ls":                          "run: --label=maybe: it is rank, host or both",
		"run --detatch ls":                              "run has no --detatch: margay run --help lists its flags",
		"run --keep ls":                                 "did you mean --keep-going?",
		"ps --frob":                                     "ps has no --frob: margay ps --help lists its flags",
		"ps -N 2":                                       "ps has no -N: margay ps --help lists its flags",
		"run -N 0 ls":                                   "run: -N 0: it must be more than 0",
		"run -c 0 ls":                                   "run: -c 0: it must be more than 0",
		"run -c 2 --per-core 2 ls":                      "--per-core and -c exclude each other",
		"run --nodelist= ls":                            "run: -w is empty",
		"run -w node[1-2 ls":                            "run: -w node[1-2: its brackets do not match",
		"run -w 4-1 ls":                                 "run: -w 4-1: the range 4-1 runs backwards",
		"run -x there ls":                               `run: -x there: "there" is not a node`,
		"run -t 10 ls":                                  "run: --time 10: it has no unit: 10s are seconds, 10m are minutes",
		"run -t 0s ls":                                  "run: -t 0s: it must be more than 0",
		"run -t soon ls":                                "run: --time soon: it is a time such as 30s",
		"run --signal USR1 ls":                          "run: --signal warns of a time limit, and there is none: --time sets it",
		"run -t 30s --signal USR1@30 ls":                "run: --signal USR1@30: 30s before a limit of 30s is before the job begins",
		"run -t 30s --signal FROB@3 ls":                 `run: --signal FROB@3: "FROB" is not a signal`,
		"run --wait 5m ls":                              "run: 5m: command not found; did you mean --wait=5m?",
		"run --timing json ls":                          "run: json: command not found; did you mean --timing=json?",
		"run --wait=never ls":                           "run: --wait=never: it is a time such as 30s",
		"run -d -o file ls":                             "margay logs JOB >FILE",
		"run -o out.%x ls":                              "run: the file out.%x: after % comes j (the job)",
		"run --chdir /there/is/none ls":                 "run: --chdir: stat /there/is/none: no such file or directory",
		"run -q -v ls":                                  "-q and -v exclude each other",
		"run --cwd /tmp ls":                             "run has no --cwd: --chdir DIR is the working directory of the ranks",
		"run -H node1 ls":                               "run has no -H: -w names the nodes",
		"run --np 4 ls":                                 "run has no --np: -n is the number of ranks",
		"run -n 0 ls":                                   "run: -n 0: it must be more than 0",
		"run -n -3 ls":                                  "run: -n -3: it must be more than 0",
		"run --ppn 0 ls":                                "--ppn 0: it must be more than 0",
		"run --per-core 0 ls":                           "--per-core 0: it must be more than 0",
		"run --pids 0 ls":                               "--pids 0: it must be more than 0",
		"run --memory 0 ls":                             "--memory 0: it must be more than 0",
		"run --init-timeout 0s ls":                      "--init-timeout 0s: it must be more than 0",
		"run --init-timeout 0 ls":                       "--init-timeout 0s: it must be more than 0",
		"machine up --nodes 0":                          "machine up: --nodes 0: it must be more than 0",
		"machine up --memory 0":                         "--memory 0: it must be more than 0",
		"machine up --substrate=":                       "machine up: --substrate is empty",
		"machine up --profile=":                         "machine up: --profile is empty",
		"machine up --accel=":                           "machine up: --accel is empty",
		"machine up --fabric=":                          "machine up: --fabric is empty",
		"machine up --machine=":                         "-m is empty",
		"machine up --cores 0":                          "machine up: --cores 0: it must be at least 1, or all",
		"machine up --cores x":                          "machine up: --cores x: it is a number of cores, or all",
		"nodes":                                         "machine default: there is no such machine in " + base + "; margay machine up makes one\n",
		"nodes -m nosuch":                               "machine nosuch: there is no such machine in " + base + "; margay machine up -m nosuch makes one\n",
		"machine down -m nosuch":                        "machine nosuch: there is no such machine in " + base + "\n",
		"machine up --dead-after 0":                     "--dead-after 0s: it must be more than 0",
		"record --duration 0":                           "--duration 0s: it must be more than 0",
		"record --job -1":                               "record: --job -1: it must be a whole number that is not negative",
		"nodes --noise 5":                               "margay: nodes: --noise 5: it must be a time with its unit",
		"nodes --noise=x":                               "nodes: --noise x: it must be a time with its unit",
		"nodes --noise -1s":                             "nodes: --noise -1s: it must be more than 0; without the flag it is the default (margay nodes --help)",
		"nodes --noise=-1s":                             "nodes: --noise -1s: it must be more than 0",
		"nodes --noise 0s":                              "--noise 0s: it must be more than 0",
		"nodes --noise 5s 6s":                           `nodes takes no arguments, but is given "6s"`,
		"nodes 5s":                                      `nodes takes no arguments, but is given "5s"`,
	} {
		status, stdout, stderr := margaytest.Margay("", strings.Fields(line)...)
		if stdout != "" {
			t.Errorf("%q prints %q", line, stdout)
		}
		margaytest.Wants(t, status, 125, stderr, want)
	}
}

// What nodes run is looked for before a machine is made: the node program, and the job init beside
// it.
func TestNodePrograms(t *testing.T) {
	t.Setenv("MARGAY_DIR", t.TempDir())
	dir := t.TempDir()
	program, jobInit := filepath.Join(dir, "nodekernel"), filepath.Join(dir, "jobinit")
	up := []string{"machine", "up", "--fabric", "ib", "--node-program", program}
	for _, k := range []struct{ want, lacks string }{
		{"the program that nodes run: stat " + program + ": no such file or directory; make build makes it, --node-program names another", program},
		{"the init of jobs: stat " + jobInit + ": no such file or directory; make build makes it beside the program that nodes run", jobInit},
		{`there is no fabric "ib": use tcp, tcp-trusted, udp or udp-trusted, or auto`, ""},
	} {
		status, _, stderr := margaytest.Margay("", up...)
		margaytest.Wants(t, status, 125, stderr, k.want)
		if k.lacks == "" {
			break
		}
		if err := os.WriteFile(k.lacks, nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

// An argument from an empty shell variable is refused: it is not a name, and does not mean this
// folder.
func TestEmptyArguments(t *testing.T) {
	t.Setenv("MARGAY_DIR", t.TempDir())
	for want, args := range map[string][]string{
		"margay: run: PROGRAM is empty: margay run [flags] PROGRAM [ARGUMENT...]\n": {"run", "", "argument"},
		"margay: kill: JOB is empty: margay kill JOB [flags]\n":                     {"kill", ""},
		"margay: run: --with: an empty name;":                                       {"run", "--with", "", "ls"},
	} {
		status, _, stderr := margaytest.Margay("", args...)
		margaytest.Wants(t, status, 125, stderr, want)
	}
}

// Short names that other launchers have are there where they mean the same.
func TestShortNames(t *testing.T) {
	t.Setenv("MARGAY_DIR", t.TempDir())
	for _, line := range []string{"run -l true", "run -d true", "logs -l 7", "nodes --noise 5s", "nodes --noise", "nodes --noise=5s"} {
		status, _, stderr := margaytest.Margay("", strings.Fields(line)...)
		margaytest.Wants(t, status, 125, stderr, "there is no such machine")
	}
}
