package slot

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"os"
	"path"
	"reflect"
	"regexp"
	"strconv"
	"testing"

	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"

	"margay/kernel/abi/wire"
)

// The C structures of the contexts, as the compiler laid them out, are the Go structures.
func TestContextsAgree(t *testing.T) {
	for _, test := range []struct {
		object, name string
		context      reflect.Type
		size         int
	}{
		{"message/accumulate", "margay_message", reflect.TypeFor[MessageContext](), MessageSize},
		{"packet/firewall", "margay_packet", reflect.TypeFor[PacketContext](), PacketSize},
		{"message/allreduce", "margay_send", reflect.TypeFor[Send](), 32},
		{"message/put", "margay_put", reflect.TypeFor[Put](), 16},
		{"message/allreduce", "margay_job_rank", reflect.TypeFor[JobRank](), 16},
		{"message/allreduce", "margay_job_node", reflect.TypeFor[JobNode](), 16},
		{"sched/roundrobin", "margay_sched", reflect.TypeFor[SchedContext](), SchedSize},
		{"sched/roundrobin", "margay_task", reflect.TypeFor[SchedTask](), (SchedSize - 40) / MaxTasks},
		{"boot/minimum", "margay_boot", reflect.TypeFor[BootContext](), BootSize},
		{"timer/heartbeat", "margay_timer", reflect.TypeFor[TimerContext](), TimerSize},
		{"place/spread", "margay_place", reflect.TypeFor[PlaceContext](), PlaceSize},
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
		if row.Ready && (len(row.Services) == 0 || !row.Allows(row.Default) || row.Allows(max(254, Verdict(row.Choices)+1))) {
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

// constants are the numbers of the header other than verdicts.
var constants = map[string]uint64{
	"TICK": uint64(Tick), "BLOCK": uint64(Block), "WAKE": uint64(Wake), "ARRIVAL": uint64(Arrival), "ENDING": uint64(Ending),
	"CHANGE": uint64(Change), "READY": uint64(Ready), "RUNNING": uint64(Running), "BLOCKED": uint64(Blocked), "HELD": uint64(Held),
	"TASKS": MaxTasks, "MESSAGE_MAX": MaxMessage, "HANDLERS": wire.MaxHandlers, "MAX_HOPS": MaxHops,
	"MAX_SENDS": MaxSends, "MAX_CAUSED": MaxCaused, "SEND_FUEL": SendFuel, "FROM_RANK": FromRank, "FROM_EXTENSION": FromExtension,
	"EAGAIN": uint64(unix.EAGAIN), "EINVAL": uint64(unix.EINVAL), "ELOOP": uint64(unix.ELOOP), "EMSGSIZE": uint64(unix.EMSGSIZE),
	"ENOTSUP": uint64(unix.ENOTSUP), "EDQUOT": uint64(unix.EDQUOT),
}

// The header declares each constant with the number that it has here, and no other.
func TestConstantsAgree(t *testing.T) {
	header, err := os.ReadFile("margay_ext.h")
	if err != nil {
		t.Fatal(err)
	}
	want := maps.Clone(constants)
	for _, row := range Table {
		for number, name := range row.Verdicts {
			want[name] = uint64(number)
		}
	}
	for _, define := range regexp.MustCompile(`(?m)^#define MARGAY_(\w+) (\d+)\b`).FindAllStringSubmatch(string(header), -1) {
		value, known := want[define[1]]
		if !known || strconv.FormatUint(value, 10) != define[2] {
			t.Errorf("MARGAY_%s is %s in the header; here it is %d, declared: %v", define[1], define[2], value, known)
		}
		delete(want, define[1])
	}
	for name, value := range want {
		t.Errorf("the header has no MARGAY_%s, which is %d", name, value)
	}
	for _, line := range []string{"#define MARGAY_NO_TASK 0xffffffffu\n", "#define MARGAY_NO_RANK 0xffffffffu\n", "#define MARGAY_INFINITE (~0ull)\n"} {
		if !bytes.Contains(header, []byte(line)) {
			t.Errorf("the header has no %q", line)
		}
	}
	if uint32(NoTask) != 0xffffffff || uint32(NoRank) != 0xffffffff || Infinite != ^uint64(0) {
		t.Errorf("NoTask is %#x, Infinite %#x", uint32(NoTask), uint64(Infinite))
	}
}

// Put writes what the compiler laid out.
func TestPlacePut(t *testing.T) {
	c := PlaceContext{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}
	want, err := binary.Append(nil, binary.LittleEndian, c)
	if err != nil {
		t.Fatal(err)
	}
	got := make([]byte, PlaceSize)
	if c.Put(got); !bytes.Equal(got, want) {
		t.Errorf("% x, want % x", got, want)
	}
	if turn := PlaceTurn(got); turn != c.Turn {
		t.Errorf("its turn is %d, want %d", turn, c.Turn)
	}
}
