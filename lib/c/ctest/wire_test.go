package ctest

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"go/ast"
	gobuild "go/build"
	"go/constant"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"margay/internal/check"
	"margay/kernel/abi/wire"
)

// same says what C has for each number of kernel/abi/wire: a name, or an expression where C needs
// no name.
var same = map[string]string{
	"Version": "WIRE_VERSION", "magic": "WIRE_MAGIC", "RingSize": "WIRE_RING_SIZE", "MaxName": "WIRE_MAX_NAME", "MaxSettings": "WIRE_MAX_SETTINGS",

	"offMagic": "WIRE_OFF_MAGIC", "offVersion": "WIRE_OFF_VERSION", "offJob": "WIRE_JOB", "offRank": "WIRE_RANK", "offSize": "WIRE_SIZE",
	"offNode": "WIRE_NODE", "offLocalRank": "WIRE_LOCAL_RANK", "offLocalSize": "WIRE_LOCAL_SIZE", "offNodes": "WIRE_NODES",
	"offTable": "WIRE_TABLE", "offSend": "WIRE_SEND", "offReceive": "WIRE_RECEIVE", "offRingSize": "WIRE_RING_BYTES",
	"offEntered": "WIRE_ENTERED", "offJoined": "WIRE_JOINED", "offReleased": "WIRE_RELEASED", "offSendControl": "WIRE_SEND_CONTROL", "offReceiveControl": "WIRE_RECEIVE_CONTROL",
	"offUpcall": "WIRE_UPCALL", "offMeets": "WIRE_MEETS", "offBound": "WIRE_BOUND", "offUpcallControl": "WIRE_UPCALL_CONTROL",
	"offTail": "WIRE_TAIL", "offHead": "WIRE_HEAD", "offConsumerWaiting": "WIRE_CONSUMER_WAITING", "offProducerWaiting": "WIRE_PRODUCER_WAITING",

	"offSettled": "WIRE_SETTLED", "offPath": "WIRE_PATH", "offChannels": "WIRE_CHANNELS",
	"PathDirect": "WIRE_DIRECT", "PathYield": "WIRE_YIELD", "PathSpin": "WIRE_SPIN", "PathMeet": "WIRE_MEET", "PathStrewn": "WIRE_STREWN", "PathFar": "WIRE_FAR",
	"offClosed": "WIRE_CHANNEL_CLOSED", "offShared": "WIRE_CHANNEL_SHARED", "offSeal": "WIRE_CHANNEL_SEAL", "offCount": "WIRE_CHANNEL_COUNT", "offTaken": "WIRE_CHANNEL_TAKEN", "offBlocked": "WIRE_CHANNEL_BLOCKED",
	"offBehind": "WIRE_CHANNEL_SETTLED", "offPosition": "WIRE_CHANNEL_POSITION", "offAcked": "WIRE_CHANNEL_ACKED", "offArrived": "WIRE_CHANNEL_ARRIVED",
	"offAcknowledged": "WIRE_CHANNEL_ACKNOWLEDGED", "offJournal": "WIRE_CHANNEL_JOURNAL", "ChannelSize": "WIRE_CHANNEL_SIZE", "ChannelEnded": "WIRE_CHANNEL_ENDED", "mirrorValue": "WIRE_MIRROR",
	"channelData": "WIRE_CHANNEL_DATA", "ChannelRing": "WIRE_CHANNEL_RING", "ChannelHeader": "WIRE_CHANNEL_HEADER",
	"markMask": "WIRE_MARK_MASK", "markValid": "WIRE_MARK_VALID",
	"boardRank": "WIRE_BOARD_RANK", "offBarrier": "WIRE_BOARD_BARRIER", "offOutcome": "WIRE_BOARD_OUTCOME", "offAsleep": "WIRE_BOARD_ASLEEP",
	"barrierLoud": "WIRE_BARRIER_LOUD", "barrierShift": "WIRE_BARRIER_SHIFT", "OutcomeQuiet": "WIRE_OUTCOME_QUIET", "OutcomeLoud": "WIRE_OUTCOME_LOUD",
	"OutcomeAbandoned": "WIRE_OUTCOME_ABANDONED", "HandlerBarrier": "WIRE_HANDLER_BARRIER", "MaxRounds": "WIRE_MAX_ROUNDS", "RoundUp": "WIRE_ROUND_UP",
	"RoundDown": "WIRE_ROUND_DOWN", "NoteRounds": "WIRE_NOTE_ROUNDS", "noteStrewn": "WIRE_NOTE_STREWN", "treeGroup": "WIRE_TREE_GROUP", "Untried": "WIRE_UNTRIED", "mostSkipped": "WIRE_MOST_SKIPPED",

	"kindMessage": "WIRE_MESSAGE", "kindPad": "WIRE_PAD",
	"OpHello": "WIRE_HELLO", "OpInsert": "WIRE_INSERT", "OpRemove": "WIRE_REMOVE", "OpStats": "WIRE_STATS", "OpRegion": "WIRE_REGION", "OpState": "WIRE_STATE",
	"OpChannel": "WIRE_CHANNEL", "OpDoorbell": "WIRE_DOORBELL",
	"StatusOK": "WIRE_OK", "StatusAgain": "WIRE_AGAIN", "SetConstant": "WIRE_SET_CONSTANT", "SetEntries": "WIRE_SET_ENTRIES", "SetTrusted": "WIRE_SET_TRUSTED",

	"HandlerCollective": "WIRE_HANDLER_COLLECTIVE", "CollectiveWindow": "WIRE_COLLECTIVE_WINDOW", "MostSmall": "WIRE_MOST_SMALL", "MaxCallLength": "WIRE_MAX_CALL_LENGTH",
	"MaxCallNumber": "WIRE_MAX_CALL_NUMBER", "MaxGroups": "MARGAY_MAX_GROUPS",
	"CallBroadcast": "WIRE_CALL_BROADCAST", "CallReduce": "WIRE_CALL_REDUCE", "CallAllReduce": "WIRE_CALL_ALL_REDUCE", "CallGather": "WIRE_CALL_GATHER",
	"CallAllGather": "WIRE_CALL_ALL_GATHER", "CallAllToAll": "WIRE_CALL_ALL_TO_ALL", "CallScan": "WIRE_CALL_SCAN", "CallBarrier": "WIRE_CALL_BARRIER",
	"CallSplit": "WIRE_CALL_SPLIT", "CallCredit": "WIRE_CALL_CREDIT", "CallProbe": "WIRE_CALL_PROBE", "CallWhere": "WIRE_CALL_WHERE",
	"whereSize": "WIRE_WHERE_SIZE", "maxWheres": "WIRE_MAX_WHERES",
	"TypeInt32": "MARGAY_INT32", "TypeInt64": "MARGAY_INT64", "TypeUint32": "MARGAY_UINT32", "TypeUint64": "MARGAY_UINT64",
	"TypeFloat32": "MARGAY_FLOAT32", "TypeFloat64": "MARGAY_FLOAT64",
	"OpSum": "MARGAY_SUM", "OpMin": "MARGAY_MIN", "OpMax": "MARGAY_MAX", "OpAnd": "MARGAY_AND", "OpOr": "MARGAY_OR", "OpXor": "MARGAY_XOR",
	"OpUser": "WIRE_OP_USER",

	"HandlerRemote": "WIRE_HANDLER_REMOTE", "MaxWindows": "MARGAY_MAX_WINDOWS",
	"RemotePut": "WIRE_REMOTE_PUT", "RemoteGet": "WIRE_REMOTE_GET", "RemoteAdd": "WIRE_REMOTE_ADD", "RemoteSwap": "WIRE_REMOTE_SWAP",
	"RemoteReply": "WIRE_REMOTE_REPLY", "RemoteOK": "WIRE_REMOTE_OK", "RemoteNoWindow": "WIRE_REMOTE_NO_WINDOW",
	"RemoteOutside": "WIRE_REMOTE_OUTSIDE",

	"HandlerCommit": "WIRE_HANDLER_COMMIT", "HandlerStopped": "WIRE_HANDLER_STOPPED", "MaxCommitNumber": "WIRE_MAX_COMMIT_NUMBER", "NoPlace": "WIRE_NO_PLACE",
	"CommitAsk": "WIRE_COMMIT_ASK", "CommitGrant": "WIRE_COMMIT_GRANT", "CommitRelease": "WIRE_COMMIT_RELEASE", "CommitBegin": "WIRE_COMMIT_BEGIN",
	"CommitData": "WIRE_COMMIT_DATA", "CommitVote": "WIRE_COMMIT_VOTE", "CommitDecide": "WIRE_COMMIT_DECIDE", "CommitDone": "WIRE_COMMIT_DONE",
	"CommitOK": "WIRE_COMMIT_OK", "CommitNoWindow": "WIRE_COMMIT_NO_WINDOW", "CommitBeyond": "WIRE_COMMIT_BEYOND", "CommitNoMemory": "WIRE_COMMIT_NO_MEMORY",
	"CommitFreed": "WIRE_COMMIT_FREED", "CommitFalse": "WIRE_COMMIT_FALSE", "CommitAbandoned": "WIRE_COMMIT_ABANDONED",
	"Equal": "MARGAY_EQ", "NotEqual": "MARGAY_NE", "Less": "MARGAY_LT", "LessEqual": "MARGAY_LE", "Greater": "MARGAY_GT", "GreaterEqual": "MARGAY_GE",
	"CommitOpSize": "sizeof(struct wire_commit_op)",

	"HandlerPiece": "WIRE_HANDLER_PIECE", "PieceArgs": "WIRE_PIECE_ARGS", "ChannelPayload": "WIRE_CHANNEL_PAYLOAD",
	"MaxPayload": "MARGAY_MAX_PAYLOAD", "MaxMessage": "MARGAY_MAX_MESSAGE", "MaxHandlers": "MARGAY_MAX_HANDLERS", "NodeExtension": "WIRE_NODE_EXTENSION",
	"RecordHeader": "sizeof(struct wire_record)", "RequestSize": "sizeof(struct wire_request)", "SettingSize": "sizeof(struct wire_setting)",
	"ReplySize":  "sizeof(struct wire_reply)",
	"MaxText":    "sizeof(((struct wire_reply *)0)->text)",
	"MaxRequest": "sizeof(struct wire_request) + WIRE_MAX_SETTINGS * sizeof(struct wire_setting)",
}

// goOnly are the numbers that C has no use for.
var goOnly = []string{
	"HeaderSize",                 // the header gives the offset of the data behind it
	"ringMask",                   // follows from RingSize
	"channelMask",                // from ChannelRing
	"MirrorSize",                 // the file says it
	"ChannelPaused",              // it is not 0
	"NoOffset",                   // UINT64_MAX
	"mirrored",                   // in C, channels have it otherwise
	"barrierEnded",               // the node kernel alone writes and reads it
	"batch", "mostIdle", "hasty", // each side may choose its own
	"WakeNobody", "WakeKernel", "WakeMirror",
	"FD",            // the environment says it
	"MaxObject",     // the node kernel sees to it
	"StatusVersion", // of a reply that is not WIRE_OK the text counts
	"StatusInvalid", "StatusNotFound", "StatusRefused", "StatusNoRoom", "StatusFailed",
}

// goNumbers returns the numbers that kernel/abi/wire declares, exported or not.
func goNumbers(t *testing.T) map[string]string {
	t.Helper()
	names, err := filepath.Glob("../../../kernel/abi/wire/*.go")
	if err != nil {
		t.Fatal(err)
	}
	fset := token.NewFileSet()
	var files []*ast.File
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(fset, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	gobuild.Default.GOROOT = strings.TrimSpace(string(root)) // with -trimpath, only the command knows it
	config := types.Config{Importer: importer.Default()}
	p, err := config.Check("wire", fset, files, nil)
	if err != nil {
		t.Fatal(err)
	}
	numbers := make(map[string]string)
	for _, name := range p.Scope().Names() {
		if c, ok := p.Scope().Lookup(name).(*types.Const); ok && c.Val().Kind() == constant.Int {
			numbers[name] = c.Val().ExactString()
		}
	}
	return numbers
}

// compiler returns a C compiler, or skips the test.
func compiler(t *testing.T) string {
	t.Helper()
	cc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("this test needs gcc")
	}
	return cc
}

// programs is the folder of compiled programs.
var programs string

func TestMain(m *testing.M) {
	var err error
	if programs, err = os.MkdirTemp("", "ctest"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	status := m.Run()
	os.RemoveAll(programs)
	os.Exit(status)
}

// build compiles a C program that may include the library's headers, with further sources, objects
// and options. What it makes of the same arguments is made once for all tests.
func build(t *testing.T, source string, more ...string) (program string) {
	t.Helper()
	program = filepath.Join(programs, fmt.Sprintf("%x", sha256.Sum256([]byte(source+strings.Join(more, "\n")))))
	if _, err := os.Stat(program); err == nil {
		return program
	}
	if err := os.WriteFile(program+".c", []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	gcc(t, append([]string{"-o", program, program + ".c"}, more...)...)
	return program
}

// objects compiles C files, each once for all tests.
func objects(t *testing.T, sources ...string) (made []string) {
	t.Helper()
	for _, source := range sources {
		object := filepath.Join(programs, filepath.Base(source)+".o")
		if _, err := os.Stat(object); err != nil {
			gcc(t, "-c", "-o", object, source)
		}
		made = append(made, object)
	}
	return made
}

func gcc(t *testing.T, args ...string) {
	t.Helper()
	args = append([]string{"-O1", "-g1", "-Wall", "-Wextra", "-Werror", "-I", "..", "-I", "../../../kernel/abi/wire", "-I", "../../../kernel/abi/mirror", "-I", "../../../kernel/abi/onesided"}, args...)
	if out, err := exec.Command(compiler(t), args...).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
}

// run runs a program with some input and returns the lines that it prints: a name, a space and a
// value.
func run(t *testing.T, program string, input []byte) map[string]string {
	t.Helper()
	cmd := exec.Command(program)
	cmd.Stdin = bytes.NewReader(input)
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	values := make(map[string]string)
	for line := range strings.Lines(string(out)) {
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		values[name] = value
	}
	return values
}

// agree runs a program with some input and fails if it does not print the lines that Go says.
func agree(t *testing.T, program string, input io.Reader, want string) {
	t.Helper()
	cmd := exec.Command(program)
	cmd.Stdin = input
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, stderr.Bytes())
	}
	theirs, ours := strings.Split(string(out), "\n"), strings.Split(want, "\n")
	for i := range ours {
		if i >= len(theirs) || theirs[i] != ours[i] {
			t.Fatalf("line %d: Go says %q, C says %q", i+1, ours[i], theirs[min(i, len(theirs)-1)])
		}
	}
}

// Every number of the interface is the same in Go and in C, and none is on one side only.
func TestNumbers(t *testing.T) {
	numbers := goNumbers(t)
	c := check.CValues(t, "#include \"../margay.h\"\n#include \"../../../kernel/abi/wire/wire.h\"", same)
	for name, value := range numbers {
		switch {
		case slices.Contains(goOnly, name):
		case same[name] == "":
			t.Errorf("wire.h has nothing for %s", name)
		case fmt.Sprint(c[name]) != value:
			t.Errorf("%s is %s in kernel/abi/wire, and %s is %d in C", name, value, same[name], c[name])
		}
	}
	for _, name := range append(slices.Collect(maps.Keys(same)), goOnly...) {
		if numbers[name] == "" {
			t.Errorf("kernel/abi/wire has no %s", name)
		}
	}
	out, err := exec.Command(compiler(t), "-E", "-dM", "../../../kernel/abi/wire/wire.h").Output()
	if err != nil {
		t.Fatal(err)
	}
	known := slices.Collect(maps.Values(same))
	for _, define := range regexp.MustCompile(`(?m)^#define (WIRE_\w+)`).FindAllStringSubmatch(string(out), -1) {
		if !slices.Contains(known, define[1]) {
			t.Errorf("kernel/abi/wire has nothing for %s", define[1])
		}
	}
}

// What Go writes is found by C in the fields of its structures, and these have no others.
func TestFields(t *testing.T) {
	mem := make([]byte, wire.AreaSize(1))
	area, err := wire.NewArea(mem, wire.Header{Size: 1}, []uint32{0})
	if err != nil {
		t.Fatal(err)
	}
	payload := []byte("payload")
	if ok, _, err := area.SendProducer().Push(wire.Record{Handler: 11, Peer: 12, Node: 13, After: 14, Args: [2]uint64{1 << 63, 1<<64 - 2}, Payload: payload}); !ok || err != nil {
		t.Fatal(ok, err)
	}
	request, err := wire.Request{Op: 21, Call: 22, Handle: 23, Value: 1<<64 - 3, Name: "name", Where: "where",
		Settings: []wire.Setting{{Kind: 31, Name: "setting", Value: 1<<64 - 4}}}.Encode()
	if err != nil {
		t.Fatal(err)
	}
	reply := wire.Reply{Call: 41, Status: 42, Handle: 43, Values: [8]uint64{1<<64 - 5, 1, 2, 3, 4, 5, 6, 1<<64 - 6}, Text: "text"}.Encode()
	want := map[string]string{
		"record.length": "48", "record.kind": "1", "record.handler": "11", "record.peer": "12", "record.node": "13", "record.size": "7", "record.after": "14",
		"record.args[0]": "9223372036854775808", "record.args[1]": "18446744073709551614",
		"request.op": "21", "request.call": "22", "request.handle": "23", "request.settings": "1", "request.value": "18446744073709551613",
		"request.name": "name", "request.where": "where",
		"setting.value": "18446744073709551612", "setting.kind": "31", "setting.zero": "0", "setting.name": "setting",
		"reply.call": "41", "reply.status": "42", "reply.handle": "43", "reply.zero": "0", "reply.text": "text",
	}
	for i, v := range []string{"18446744073709551611", "1", "2", "3", "4", "5", "6", "18446744073709551610"} {
		want[fmt.Sprintf("reply.values[%d]", i)] = v
	}

	op := wire.CommitOp{Compare: wire.Greater, Window: 51, Offset: 1<<64 - 7, Value: 52, Second: wire.NoOffset, Word: 53}.Encode()
	maps.Copy(want, map[string]string{"commit_op.compare": "5", "commit_op.window": "51", "commit_op.offset": "18446744073709551609",
		"commit_op.value": "52", "commit_op.second": "18446744073709551615", "commit_op.word": "53"})

	header, err := os.ReadFile("../../../kernel/abi/wire/wire.h")
	if err != nil {
		t.Fatal(err)
	}
	source := "#include <stdio.h>\n#include \"wire.h\"\n" +
		"static struct wire_record record;\nstatic struct wire_request request;\nstatic struct wire_setting setting;\nstatic struct wire_reply reply;\n" +
		"static struct wire_commit_op commit_op;\n" +
		"#define READ(x) if (fread(&x, sizeof x, 1, stdin) != 1) return 1\n" +
		"int main(void)\n{\n\tREAD(record);\n\tREAD(request);\n\tREAD(setting);\n\tREAD(reply);\n\tREAD(commit_op);\n"
	field := regexp.MustCompile(`(?m)^\t(\w+) (\w+)(\[\w+\])?;$`)
	n := 0
	for _, s := range regexp.MustCompile(`(?s)struct wire_(\w+) \{\n(.*?)\};`).FindAllStringSubmatch(string(header), -1) {
		for _, f := range field.FindAllStringSubmatch(s[2], -1) {
			name := s[1] + "." + f[2]
			switch n++; {
			case f[1] == "char":
				source += fmt.Sprintf("\tprintf(\"%s=%%s\\n\", %[1]s);\n", name)
			case f[3] != "":
				source += fmt.Sprintf("\tfor (unsigned i = 0; i < sizeof %s / sizeof %[1]s[0]; i++)\n\t\tprintf(\"%[1]s[%%u]=%%llu\\n\", i, (unsigned long long)%[1]s[i]);\n", name)
			default:
				source += fmt.Sprintf("\tprintf(\"%s=%%llu\\n\", (unsigned long long)%[1]s);\n", name)
			}
		}
	}
	if n != strings.Count(string(header), ";")-5 {
		t.Errorf("%d fields were found in wire.h", n)
	}
	ring := mem[len(mem)-3*wire.RingSize:]
	got := run(t, build(t, source+"\treturn 0;\n}\n"), slices.Concat(ring[:wire.RecordHeader], request, reply, op))
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if got[name] != want[name] {
			t.Errorf("%s is %q, C reads %q", name, want[name], got[name])
		}
		delete(got, name)
	}
	if len(got) != 0 {
		t.Errorf("C has more fields: %v", got)
	}
}
