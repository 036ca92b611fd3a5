package ctest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// playedMargay is a command margay that writes its arguments to a file. Each job has number 17, and
// exits with status 7 if it is called work.
const playedMargay = `#!/bin/sh
echo "$#: $*" >>"$CALLS"
case $1 in
machine) exit "$UP" ;;
kill) case " $* " in *" 99 "*) exit 125 ;; esac ;;
run)
	case "$*" in
	*missing*) exit 127 ;;
	*silent*) exit 0 ;;
	esac
	echo 17 >/dev/fd/3
	case "$*" in *work*) exit 7 ;; esac ;;
esac
`

// A program outside of a job starts jobs, signals them and waits for them by the command margay.
func TestGLUnix(t *testing.T) {
	source, err := os.ReadFile("testdata/glunix.c")
	if err != nil {
		t.Fatal(err)
	}
	program := build(t, string(source), "../glunix.c")
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "margay"), []byte(playedMargay), 0o700); err != nil {
		t.Fatal(err)
	}
	calls := filepath.Join(dir, "calls")
	run := func(env ...string) string {
		c := exec.Command(program)
		c.Env = append(env, "PATH="+dir+":/usr/bin:/bin", "CALLS="+calls)
		out, err := c.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return string(out)
	}
	const outside = "this process is not a rank of a job"
	want := []string{
		`Glib_Spawn(1, "work", NULL): -1: Glib_Initialize has not been called, or has failed`,
		`Glib_Initialize(): 0`,
		`Glib_Initialize(): 0`,
		`Glib_Spawn(0, "work", NULL): -1: Glib_Spawn: a job on 0 nodes`,
		`Glib_Spawn(3, "work", ((char *[]){"name", "-n", "a b", NULL})): 17`,
		`Glib_CoSpawn(17, "-look", NULL): 17`,
		`Glib_Spawn(1, "missing", NULL): -1: missing could not be started: margay run ended with status 127`,
		`Glib_Spawn(1, "silent", NULL): -1: silent could not be started: margay run ended with status 0`,
		`Glib_Signal(17, 2, 10): 0`,
		`Glib_Signal(17, GLIB_ALL_VNNS, 12): 0`,
		`Glib_Signal(99, 0, 12): -1: Glib_Signal: margay kill ended with status 125`,
		`Glib_Signal(17, -2, 12): -1: Glib_Signal: there is no rank -2`,
		`Glib_Wait(17, &status): 0`,
		`status: 0`,
		`Glib_Wait(17, &status): 0`,
		`status: 7`,
		`Glib_Wait(17, NULL): -1: Glib_Wait: this process has no job 17, or has waited for it`,
		`Glib_GetMyNpid(): -1: Glib_GetMyNpid: ` + outside,
		`Glib_GetMyVNN(): -1: Glib_GetMyVNN: ` + outside,
		`Glib_Barrier(): -1: Glib_Barrier: ` + outside,
		`Glib_Finalize(): -1: Glib_Finalize: ` + outside,
	}
	if got := run("UP=0"); got != strings.Join(want, "\n")+"\n" {
		t.Errorf("it prints\n%s", got)
	}
	called, err := os.ReadFile(calls)
	if err != nil {
		t.Fatal(err)
	}
	const asked = "run --stdin none --job-file /dev/fd/3 "
	wantCalls := []string{
		"2: machine status",
		"11: " + asked + "-N 3 -- work -n a b",
		"9: " + asked + "--beside 17 -- -look",
		"9: " + asked + "-N 1 -- missing",
		"9: " + asked + "-N 1 -- silent",
		"7: kill -s 10 --rank 2 -- 17",
		"5: kill -s 12 -- 17",
		"7: kill -s 12 --rank 0 -- 99",
	}
	if string(called) != strings.Join(wantCalls, "\n")+"\n" {
		t.Errorf("it calls\n%s", called)
	}
	if got := run("UP=125"); !strings.Contains(got, "Glib_Initialize(): -1: the machine is not up: margay machine status ended with status 125\n") {
		t.Errorf("without a machine it prints\n%s", got)
	}
	for _, line := range []string{
		"Glib_Initialize(): 0", "Glib_GetMyNpid(): 5", "Glib_GetMyVNN(): 3", "Glib_Barrier(): -1: the barrier is played", "Glib_Finalize(): 0",
		"Glib_Signal(17, 2, 10): -1: Glib_Signal: a rank cannot do that: nodes give programs on them no connection to serve",
	} {
		if got := run("MARGAY_RANK=3"); !strings.Contains(got, line+"\n") {
			t.Errorf("a rank does not print %q:\n%s", line, got)
		}
	}
}
