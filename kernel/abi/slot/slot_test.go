package slot

import (
	"bytes"
	"fmt"
	"os"
	"path"
	"reflect"
	"regexp"
	"testing"

	"github.com/cilium/ebpf/btf"
)

// The C structures of the contexts, as the compiler laid them out, are the Go structures.
func TestContextsAgree(t *testing.T) {
	for _, test := range []struct {
		object, name string
		context      reflect.Type
		size         int
	}{
		{"message/accumulate", "margay_message", reflect.TypeFor[MessageContext](), MessageSize},
		{"sched/roundrobin", "margay_sched", reflect.TypeFor[SchedContext](), SchedSize},
		{"sched/roundrobin", "margay_task", reflect.TypeFor[SchedTask](), (SchedSize - 40) / MaxTasks},
		{"boot/minimum", "margay_boot", reflect.TypeFor[BootContext](), BootSize},
		{"timer/heartbeat", "margay_timer", reflect.TypeFor[TimerContext](), TimerSize},
		{"fault/tolerate", "margay_exit", reflect.TypeFor[ExitContext](), ExitSize},
	} {
		t.Run(test.name, func(t *testing.T) {
			file, err := os.ReadFile(fmt.Sprintf("../../../ext/%s/%s.o", test.object, path.Base(test.object)))
			if err != nil {
				t.Fatal(err)
			}
			spec, err := btf.LoadSpecFromReader(bytes.NewReader(file))
			if err != nil {
				t.Fatal(err)
			}
			var c *btf.Struct
			if err := spec.TypeByName(test.name, &c); err != nil {
				t.Fatal(err)
			}
			if int(c.Size) != test.size || int(test.context.Size()) != test.size {
				t.Errorf("struct %s has %d bytes, %v %d, want %d", test.name, c.Size, test.context, test.context.Size(), test.size)
			}
			agree(t, c, test.context)
		})
	}
}

// agree compares the members of a structure.
func agree(t *testing.T, c *btf.Struct, goType reflect.Type) {
	if len(c.Members) != goType.NumField() {
		t.Fatalf("%v has %d members, %v %d", c, len(c.Members), goType, goType.NumField())
	}
	for i, m := range c.Members {
		f := goType.Field(i)
		size, err := btf.Sizeof(m.Type)
		if err != nil {
			t.Fatal(err)
		}
		if int(m.Offset.Bytes()) != int(f.Offset) || size != int(f.Type.Size()) {
			t.Errorf("member %s is at %d with %d bytes, field %s at %d with %d", m.Name, m.Offset.Bytes(), size, f.Name, f.Offset, f.Type.Size())
		}
	}
}

// The headers declare the verdicts with the table's numbers.
func TestVerdictsAgree(t *testing.T) {
	header, err := os.ReadFile("margay_ext.h")
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range Table {
		for number, name := range row.Verdicts {
			line := fmt.Appendf(nil, "#define MARGAY_%s %d ", name, number)
			if !bytes.Contains(header, line) {
				t.Errorf("slot %s: the header has no %q", row.Name, line)
			}
		}
	}
}

// So does the bound on how often a message is forwarded.
func TestMaxHopsAgrees(t *testing.T) {
	header, err := os.ReadFile("margay_ext.h")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(header, fmt.Appendf(nil, "#define MARGAY_MAX_HOPS %d\n", MaxHops)) {
		t.Error("the header has another MARGAY_MAX_HOPS")
	}
}

func TestTable(t *testing.T) {
	seen := make(map[Name]bool)
	for _, row := range Table {
		if seen[row.Name] || row.What == "" {
			t.Errorf("row %+v", row)
		}
		seen[row.Name] = true
		got, err := Find(row.Name)
		if (err == nil) != row.Ready || row.Ready && got.Context == 0 {
			t.Errorf("Find(%s) = %+v, %v", row.Name, got, err)
		}
		if row.Ready && (len(row.Services) == 0 || !row.Allows(row.Default) || row.Allows(254)) {
			t.Errorf("slot %s offers no service, or allows the wrong answers", row.Name)
		}
		if row.Ready && (row.Fuel == 0 || row.Time == 0 || row.Verdicts[row.Default] == "") {
			t.Errorf("slot %s has no budget or no default: %+v", row.Name, row)
		}
	}
	if _, err := Find("nothing"); err == nil {
		t.Error("a slot that does not exist was found")
	}
}

// The header declares the constants of the sched slot with the numbers that they have here.
func TestConstantsAgree(t *testing.T) {
	header, err := os.ReadFile("margay_ext.h")
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]uint64{
		"TICK": uint64(Tick), "BLOCK": uint64(Block), "WAKE": uint64(Wake), "ARRIVAL": uint64(Arrival), "ENDING": uint64(Ending),
		"CHANGE": uint64(Change), "READY": uint64(Ready), "RUNNING": uint64(Running), "BLOCKED": uint64(Blocked), "HELD": uint64(Held),
		"TASKS": MaxTasks, "MESSAGE_MAX": MaxMessage,
	} {
		if !regexp.MustCompile(fmt.Sprintf(`(?m)^#define MARGAY_%s %d\b`, name, value)).Match(header) {
			t.Errorf("the header does not say that MARGAY_%s is %d", name, value)
		}
	}
	for _, line := range []string{"#define MARGAY_NO_TASK 0xffffffffu\n", "#define MARGAY_INFINITE (~0ull)\n"} {
		if !bytes.Contains(header, []byte(line)) {
			t.Errorf("the header has no %q", line)
		}
	}
	if uint32(NoTask) != 0xffffffff || Infinite != ^uint64(0) {
		t.Errorf("NoTask is %#x, Infinite %#x", uint32(NoTask), uint64(Infinite))
	}
}
