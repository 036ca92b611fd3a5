package nimble_test

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"margay/nimble/driver"
	"margay/nimble/engine/list"
	"margay/tools/margay/margaytest"
	"margay/tools/margay/nimble"
)

// Programs in hexadecimal.
const (
	exit     = "9500000000000000"
	return42 = "b7000000 2a000000 95000000 00000000"
	load64   = "7910000000000000" + exit // ldxdw r0, [r1]
	returnR1 = "bf10000000000000" + exit // mov r0, r1
	returnR2 = "bf20000000000000" + exit // mov r0, r2
	endless  = "0500ffff00000000"        // ja -1
	frob     = "bf16000000000000" + "8500000001000000" + "7960000000000000" + exit
	echo     = "b70100000700000085000000050000009500000000000000" // mov r1, 7; call 5; exit
	lookup   = "8500000001000000" + exit
	null     = "b701000000000000" + load64 // mov r1, 0
)

// twoPrograms is a text of two programs; one has data.
const twoPrograms = `
.program answer timer
.map .rodata array 4 1 readonly
.bytes 2a
    lddw_value r1, .rodata, 0
    ldxw r0, [r1]
    exit
.program double message
    ldxb r0, [r1]
    add r0, r0
    exit
`

const (
	accumulate = "../../../ext/message/accumulate/accumulate.o"
	faults     = "../../../nimble/object/testdata/faults.o"
)

func TestNimble(t *testing.T) {
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte("no object"), 0o600); err != nil {
		t.Fatal(err)
	}
	programs := filepath.Join(t.TempDir(), "programs")
	if err := os.WriteFile(programs, []byte(twoPrograms), 0o600); err != nil {
		t.Fatal(err)
	}
	context := filepath.Join(t.TempDir(), "context")
	if err := os.WriteFile(context, []byte("\x01\x02\x03\x04\x05\x06\x07\x08"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		args   string // separated by |
		stdin  string
		status int
		stdout string // whole
		stderr string // a regular expression for the whole line
	}{
		{"value", "run", return42, 0, "2a\n", ""},
		{"white space", "run", "\n\t" + strings.ReplaceAll(return42, "0 ", "0\r\n"), 0, "2a\n", ""},
		{"64 bits", "run", "b7000000ffffffff" + exit, 0, "ffffffffffffffff\n", ""},
		{"forced engine", "run|--engine=portable", return42, 0, "2a\n", ""},
		{"memory", "run|0102030405060708", load64, 0, "807060504030201\n", ""},
		{"memory with white space", "run|01 02 0304\n05 06 07 08 ", load64, 0, "807060504030201\n", ""},
		{"memory before flags", "run|0102030405060708|--fuel=2", load64, 0, "807060504030201\n", ""},
		{"recorded context", "run|--ctx|" + context, load64, 0, "807060504030201\n", ""},
		{"length of the memory", "run|010203", returnR2, 0, "3\n", ""},
		{"no memory: address", "run", returnR1, 0, "0\n", ""},
		{"no memory: length", "run", returnR2, 0, "0\n", ""},
		{"empty memory", "run|", returnR1, 0, "0\n", ""},
		{"stack of 512 bytes", "run", "79a000fe00000000" + exit, 0, "0\n", ""},
		{"service 5", "run", echo, 0, "7\n", ""},
		{"service 1", "run|0000000000000000", frob, 0, "2a2a2a2a2a2a2a2a\n", ""},
		{"trusted", "run|--trusted|0102030405060708", load64, 0, "807060504030201\n", ""},
		{"just enough fuel", "run|--fuel=2", return42, 0, "2a\n", ""},
		{"no limit of time", "run|--max-time=0", return42, 0, "2a\n", ""},
		{"other machine", "-m|nowhere|nimble|run", return42, 0, "2a\n", ""},

		{"rejected: opcode", "run", "ff00000000000000" + exit, 2, "", `insn=0: unknown opcode 0xff`},
		{"rejected: reserved field", "run", return42 + "b7000100000000009500000000000000", 2, "", `insn=2: mov: field off is 1, must be 0`},
		{"rejected: empty", "run", "", 2, "", `insn=0: empty program`},
		{"rejected: no hexadecimal", "run", exit + "95xx", 2, "", `insn=1: .*invalid byte.*`},
		{"rejected: odd", "run", "950", 2, "", `insn=0: .*odd length.*`},
		{"rejected: truncated", "run", "95", 2, "", `insn=0: truncated to 1 of 8 bytes`},
		{"rejected: service", "run|--services=none", echo, 2, "", `insn=1: unknown service 5; there are none`},
		{"rejected: callx", "run", "8d00000000000000" + exit, 2, "", `insn=0: callx is refused: .*`},

		{"fault: memory", "run|0102030405060708", "7910010000000000" + exit, 1, "", `pc=0 addr=0x[0-9a-f]+ kind=memory fuel=999998 region=context\+1`},
		{"fault: null", "run", load64, 1, "", `pc=0 addr=0x0 kind=memory fuel=999998 region=null\+0`},
		{"fault: trusted", "run|--trusted", null, 1, "", `pc=1 addr=0x0 kind=memory fuel=999997 region=null\+0`},
		{"fault: fuel", "run|--fuel=10", endless, 1, "", `pc=0 addr=0x0 kind=fuel fuel=0`},
		{"fault: time", "run|--max-time=1ms|--fuel=1000000000000", endless, 1, "", `pc=0 addr=0x0 kind=time fuel=\d+`},
		{"fault: argument", "run|--services=linux", lookup, 1, "", `pc=0 addr=0x0 kind=argument fuel=999998: map_lookup_elem: argument 1 .*`},

		{"object", "run|--elf|" + accumulate, "", 1, "", `pc=2 addr=0x10 kind=memory .* line=./accumulate.c:29`},
		{"section", "run|--elf|" + accumulate + "|--section=message/interface|" + strings.Repeat("00", 1072), "", 0, "2\n", ""},
		{"rejected: object", "run|--elf|" + text, "", 2, "", `not an ELF file.*`},
		{"function", "run|--elf|" + faults + "|--function=null", "", 1, "", `pc=1 addr=0x0 kind=memory .*`},
		{"function and section", "run|--elf|" + faults + "|--function=null|--section=message/null", "", 1, "", `pc=1 addr=0x0 kind=memory .*`},
		{"rejected: which program", "run|--elf|" + faults + "|--function=unknown_name", "", 2, "",
			`message/unknown-name unknown_name: insn=1: ./faults.c:\d+: unknown service "no_such_service"; there are 1 map_lookup_elem, .*`},
		{"object: no such function", "run|--elf|" + faults + "|--section=message/null|--function=endless", "", 125, "",
			`no program with --section message/null --function endless; there are message/endless endless, .*`},
		{"object: no such section", "run|--elf|" + accumulate + "|--section=timer", "", 125, "", `no program with --section timer; there are message/interface accumulate`},
		{"object: several programs", "run|--elf|" + faults, "", 125, "", `6 programs, choose one by --section or --function: message/endless endless, .*`},
		{"text", "run|--asm|" + programs + "|--section=timer", "", 0, "2a\n", ""},
		{"text: function", "run|--asm|" + programs + "|--function=double|15", "", 0, "2a\n", ""},
		{"text: no such function", "run|--asm|" + programs + "|--function=half", "", 125, "", `no program with --function half; there are timer answer, message double`},
		{"rejected: text", "run|--asm|" + text, "", 2, "", `1:1: no instruction "no"`},
		{"usage: two files", "run|--elf=x|--asm=y", "", 125, "", `--elf x and --asm y: only one of them`},
		{"usage: function", "run|--function=x", return42, 125, "", `--function x: only a file has several programs, give --elf or --asm`},
		{"object: no file", "run|--elf|/nonexistent", "", 125, "", `open /nonexistent: no such file or directory`},

		{"usage: memory", "run|0x00", return42, 125, "", `nimble run: "0x00" is not memory in hexadecimal, such as "01 02 03"; a program comes from standard input, --elf or --asm`},
		{"usage: a program as memory", "run|nimble.go", "", 125, "", `nimble run: "nimble.go" is not memory in hexadecimal: --elf nimble.go runs the program of an object, .*--ctx nimble.go reads memory from a file`},
		{"usage: memory twice", "run|--ctx=x|00", return42, 125, "", `--ctx x: it takes the place of MEM`},
		{"usage: no context", "run|--ctx=/nonexistent", return42, 125, "", `open /nonexistent: no such file or directory`},
		{"usage: two memories", "run|00|00", return42, 125, "", `nimble run: "00" is one argument too many: .*`},
		{"usage: engine", "run|--engine=warp", return42, 125, "", `there is no engine "warp"; see margay nimble engines`},
		{"usage: services", "run|--services=x", return42, 125, "", `no services "x"; there are test, linux, node, none`},
		{"usage: fuel", "run|--fuel=0", return42, 125, "", `--fuel 0: .*`},
		{"usage: negative fuel", "run|--fuel=-1", return42, 125, "", `nimble run: --fuel -1: it must be a whole number that is not negative`},
		{"usage: time", "run|--max-time=-1s", return42, 125, "", `--max-time -1s: .*`},
		{"usage: section", "run|--section=x", return42, 125, "", `--section x: only a file has several programs, give --elf or --asm`},
		{"usage: flag", "run|--nothing", return42, 125, "", `nimble run has no --nothing: margay nimble run --help lists its flags`},
		{"usage: command", "walk", "", 125, "", `nimble walk: there is no such command \(margay nimble --help\)`},

		{"batch", "run|--batch", "- " + return42 + "\n0102030405060708 " + load64 + "\n- ff\n- " + load64 + "\n-\n", 0,
			"2a\n807060504030201\nreject insn=0: truncated to 1 of 8 bytes\nfault pc=0 addr=0x0 kind=memory fuel=999998 region=null+0\nreject insn=0: empty program\n", ""},
		{"batch: fuel left", "run|--batch|--fuel=10", "- " + endless + "\n", 0, "fault pc=0 addr=0x0 kind=fuel fuel=0\n", ""},
		{"batch: no lines", "run|--batch", "", 0, "", ""},
		{"batch: no newline at the end", "run|--batch", "- " + return42, 0, "2a\n", ""},
		{"batch: bad lines", "run|--batch", "- " + return42 + "\n\nzz 95\n- " + return42, 125,
			"2a\nerror want MEMHEX CODEHEX, got an empty line\nerror memory: encoding/hex: invalid byte: U+007A 'z'\n2a\n",
			`batch: 2 of 4 lines could not be run, line 2 is the first`},
		{"batch: memory", "run|--batch|00", "", 125, "", `--batch: .*`},
		{"batch: context", "run|--batch|--ctx=x", "", 125, "", `--batch: .*`},
		{"batch: object", "run|--batch|--elf|" + accumulate, "", 125, "", `--batch: .*`},

		{"bench: no such program", "bench|nothing", "", 125, "", `invalid argument "nothing" for "margay nimble bench"`},
		{"bench: engine", "bench|--engine=warp", "", 125, "", `there is no engine "warp"; see margay nimble engines`},
		{"bench: rounds", "bench|--rounds=0", "", 125, "", `--rounds 0: at least one`},

		{"verify", "verify", return42, 0, "raw: accepted: 2 instructions in 1 basic block and 1 function, 0 of 0 memory accesses proved\n", ""},
		{"verify: object", "verify|--elf|" + accumulate, "", 0,
			"message/interface accumulate: accepted: 159 instructions in 39 basic blocks and 1 function, 55 of 55 memory accesses proved\n", ""},
		{"verify -v", "verify|-v", frob, 0, "raw: accepted: 4 instructions in 1 basic block and 1 function, 0 of 1 memory access proved\n" +
			"function 0 to 3: no stack frame\n" +
			"  insn=1      call 1                           service memfrob(writable, length)\n" +
			"  insn=2      ldxdw r0, [r6+0]                 checked at run time: context+0..7 of at least 0\n", ""},
		{"verify --context", "verify|-v|--context=8", frob, 0, "raw: accepted: 4 instructions in 1 basic block and 1 function, 1 of 1 memory access proved\n" +
			"function 0 to 3: no stack frame\n" +
			"  insn=1      call 1                           service memfrob(writable, length)\n" +
			"  insn=2      ldxdw r0, [r6+0]                 proved: context+0..7 of at least 8\n", ""},
		{"verify: rejected", "verify", "ff00000000000000", 2, "", `insn=0: unknown opcode 0xff`},
		{"verify: service", "verify|--elf|" + accumulate + "|--services=none", "", 2, "", `message/interface accumulate: insn=13: ./accumulate.c:32: unknown service 1; there are none`},

		{"asm", "asm", "mov r0, 1 # one\nx: ja x", 0, "b700000001000000\n0500ffff00000000\n", ""},
		{"asm: bytes", "asm|--raw", "exit", 0, "\x95\x00\x00\x00\x00\x00\x00\x00", ""},
		{"asm: nothing", "asm", "", 0, "", ""},
		{"asm: mistake", "asm", "exit\n add r1, x", 125, "", `2:10: malformed operand "x": want a 32-bit number or a register`},
		{"asm: several programs", "asm", twoPrograms, 125, "", `2 programs, choose one by --section or --function: timer answer, message double`},
		{"asm: one of several programs", "asm|--function=double", twoPrograms, 0, "7110000000000000\n0f00000000000000\n" + exit + "\n", ""},
		{"dis: text", "dis|--section=timer|--asm|" + programs, "", 0, ".program answer timer\n.map .rodata array 4 1 readonly\n.bytes 2a\n" +
			"    lddw_value r1, .rodata, 0\n    ldxw r0, [r1+0]\n    exit\n", ""},
		{"dis", "dis", return42 + endless, 0, "    mov r0, 42\n    exit\nL2:\n    ja L2\n", ""},
		{"dis: slots", "dis|-s", "180000000100000000000000000000009500000000000000", 0,
			"    lddw r0, 0x1                        # 0\n    exit                                # 2\n", ""},
		{"dis: bytes", "dis|--raw", "\x95\x00\x00\x00\x00\x00\x00\x00", 0, "    exit\n", ""},
		{"dis: what would be rejected", "dis", "ff00000000000000b700010000000000", 0, "    hex ff00000000000000\n    hex b700010000000000\n", ""},
		{"dis: no program", "dis", "xx", 2, "", `insn=0: .*invalid byte.*`},
		{"dis: bytes of an object", "dis|--raw|--elf|" + accumulate, "", 125, "", `--raw: standard input is read, not --elf or --asm`},
	} {
		t.Run(c.name, func(t *testing.T) {
			args := strings.Split(c.args, "|")
			if !strings.HasPrefix(c.args, "-m") {
				args = append([]string{"nimble"}, args...)
			}
			status, stdout, stderr := margaytest.Margay(c.stdin, args...)
			if status != c.status || stdout != c.stdout {
				t.Errorf("exit status %d with %q, want %d with %q", status, stdout, c.status, c.stdout)
			}
			want := "^$"
			if c.stderr != "" {
				want = "^margay: " + c.stderr + "\n$"
			}
			if !regexp.MustCompile(want).MatchString(stderr) {
				t.Errorf("standard error is %q, want %s", stderr, want)
			}
		})
	}
}

func TestNimbleEngines(t *testing.T) {
	status, stdout, _ := margaytest.Margay("", "nimble", "engines")
	if status != 0 || strings.Count(stdout, "the default") != 1 {
		t.Errorf("exit status %d with\n%s", status, stdout)
	}
	for _, entry := range list.Engines {
		if !strings.Contains(stdout, entry.Name+" ") {
			t.Errorf("%s is not listed:\n%s", entry.Name, stdout)
		}
	}
	var rows []nimble.EngineRow
	_, stdout, _ = margaytest.Margay("", "nimble", "engines", "--json")
	if err := json.Unmarshal([]byte(stdout), &rows); err != nil || len(rows) != len(list.Engines) {
		t.Fatalf("%v with\n%s", err, stdout)
	}
	defaults := 0
	for _, r := range rows {
		if r.Here != (r.Reason == "") || r.Default && (!r.Here || r.Asked) {
			t.Errorf("%+v", r)
		}
		if r.Default {
			defaults++
		}
	}
	if defaults != 1 {
		t.Errorf("%d engines are the default", defaults)
	}
}

// TestNimbleDisObject takes objects through text: a program that is read back prints and
// verifies as before, and with one program gives the same bytes.
func TestNimbleDisObject(t *testing.T) {
	for _, object := range []string{accumulate, faults, "../../../nimble/object/testdata/counter.o", "../../../nimble/object/testdata/calls.o"} {
		_, text, _ := margaytest.Margay("", "nimble", "dis", "--elf", object)
		if !strings.Contains(text, ".program ") || !strings.Contains(text, "# ./"+strings.TrimSuffix(filepath.Base(object), "o")) {
			t.Errorf("%s: no programs or source lines in\n%s", object, text)
		}
		file := filepath.Join(t.TempDir(), "text")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, again, stderr := margaytest.Margay("", "nimble", "dis", "--asm", file)
		if want := regexp.MustCompile(`(?m)^ *#.*\n`).ReplaceAllString(text, ""); again != want {
			t.Errorf("%s: %sis printed as\n%swant\n%s", object, stderr, again, want)
		}
		wantStatus, want, _ := margaytest.Margay("", "nimble", "verify", "-v", "--elf", object)
		status, got, _ := margaytest.Margay("", "nimble", "verify", "-v", "--asm", file)
		want = regexp.MustCompile(`(?m) +\([^ ]+:\d+\)$`).ReplaceAllString(want, "")
		if status != wantStatus || got != want {
			t.Errorf("%s: verified with %d as\n%swant %d\n%s", object, status, got, wantStatus, want)
		}
	}
	_, text, _ := margaytest.Margay("", "nimble", "dis", "--elf", accumulate)
	_, code, stderr := margaytest.Margay(text, "nimble", "asm")
	_, again, _ := margaytest.Margay(code, "nimble", "dis")
	_, raw, _ := margaytest.Margay(again, "nimble", "asm", "--raw")
	_, last, _ := margaytest.Margay(raw, "nimble", "dis", "--raw")
	if again == "" || again != last {
		t.Errorf("%s: the text changes on the way:\n%s", stderr, last)
	}
}

// TestNimbleVerifySection warns of a section that names no slot, and of no other.
func TestNimbleVerifySection(t *testing.T) {
	text, err := os.ReadFile(accumulate)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "massage.o")
	if err := os.WriteFile(file, bytes.ReplaceAll(text, []byte("message/interface\x00"), []byte("massage/interface\x00")), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		accumulate: "",
		file:       "margay: program accumulate is in section massage/interface, which names no slot; see margay ext slots\n",
	} {
		if status, _, stderr := margaytest.Margay("", "nimble", "verify", "--elf", name); status != 0 || stderr != want {
			t.Errorf("%s: exit status %d, %q, want %q", name, status, stderr, want)
		}
	}
}

// TestNimbleVerifyJSON covers accepted and rejected programs.
func TestNimbleVerifyJSON(t *testing.T) {
	var reports []driver.Report
	status, stdout, stderr := margaytest.Margay("", "nimble", "verify", "--json", "--elf", faults)
	if err := json.Unmarshal([]byte(stdout), &reports); err != nil || status != 2 || strings.Count(stderr, "\n") != 2 {
		t.Fatalf("exit status %d, %v, %swith\n%s", status, err, stderr, stdout)
	}
	accepted := make(map[string]bool)
	for _, r := range reports {
		accepted[r.Function] = r.Accepted
		if r.Accepted != (r.Refusal == nil) || r.Accepted != (r.Instructions > 0) {
			t.Errorf("%+v", r)
		}
		if r.Function == "unknown_name" && (r.Refusal.Slot != 1 || !strings.HasPrefix(r.Refusal.Line, "./faults.c:") || !strings.HasPrefix(r.Refusal.Reason, `unknown service "no_such_service"; there are 1 map_lookup_elem, `)) {
			t.Errorf("%+v", r.Refusal)
		}
	}
	want := map[string]bool{"past_end": true, "null": true, "endless": true, "recurse": true, "unknown_service": false, "unknown_name": false}
	if !maps.Equal(accepted, want) {
		t.Errorf("accepted: %v", accepted)
	}
	reports = nil
	if _, stdout, stderr = margaytest.Margay(frob, "nimble", "verify", "--json"); json.Unmarshal([]byte(stdout), &reports) != nil || len(reports) != 1 {
		t.Fatalf("%swith\n%s", stderr, stdout)
	}
	wantFindings := []driver.Finding{
		{Slot: 1, Text: "call 1", Service: "memfrob", Args: []string{"writable", "length"}},
		{Slot: 2, Text: "ldxdw r0, [r6+0]", Access: "checked", Why: "context+0..7 of at least 0"},
	}
	if got := reports[0].Functions; len(got) != 1 || got[0].End != 4 || !reflect.DeepEqual(got[0].Findings, wantFindings) {
		t.Errorf("got %+v", got)
	}
}

func TestNimbleBench(t *testing.T) {
	status, stdout, stderr := margaytest.Margay("", "nimble", "bench", "pick", "--rounds=1")
	if status != 0 || !regexp.MustCompile(`(?m)^pick +portable +unchecked +13 +\d`).MatchString(stdout) {
		t.Errorf("exit status %d, %swith\n%s", status, stderr, stdout)
	}
	var figures []nimble.Figure
	_, stdout, stderr = margaytest.Margay("", "nimble", "bench", "pick", "--rounds=1", "--engine=portable", "--json")
	if err := json.Unmarshal([]byte(stdout), &figures); err != nil || len(figures) != 2 || figures[0].NsPerInstruction <= 0 || figures[0].Error != "" {
		t.Errorf("%v, %swith\n%s", err, stderr, stdout)
	}
}
