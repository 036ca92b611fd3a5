package verify_test

import (
	"strings"
	"testing"

	"margay/nimble/asm"
	"margay/nimble/object"
	"margay/nimble/service"
	"margay/nimble/state"
	"margay/nimble/verify"
)

// proofs are programs for contexts of at least 40 bytes. A comment after every
// access says whether it is proved. The maps are words, 8 elements of 8 bytes;
// constants, one read-only element of 16 bytes; and cores, a per-core array of 4
// elements of 12 bytes.
var proofs = []struct{ name, text string }{
	{"stack", `
		ldxb r0, [r10-1]      # proved
		ldxb r0, [r10]        # checked
		ldxdw r0, [r10-512]   # proved
		ldxb r0, [r10-513]    # checked
		ldxdw r0, [r10-7]     # checked
		stxdw [r10-8], r10    # proved
		mov r2, r10
		add r2, -512
		stb [r2+511], 1       # proved
		stb [r2+512], 1       # checked
		stb [r2-1], 1         # checked
		exit`},
	{"context", `
		ldxb r0, [r1]         # proved
		ldxb r0, [r1-1]       # checked
		ldxdw r0, [r1+32]     # proved
		ldxdw r0, [r1+33]     # checked
		stxb [r1+39], r2      # proved
		stxb [r1+40], r2      # checked
		atomic_add [r1+32], r2    # proved
		atomic_add32 [r1+37], r2  # checked
		exit`},
	{"a context that is longer", `
		jlt r2, 48, short
		ldxdw r0, [r1+40]     # proved
		ldxdw r0, [r1+41]     # checked
		short:
		ldxdw r0, [r1+40]     # checked
		exit`},
	{"a context that may be longer", `
		jge r2, 48, long
		ldxdw r0, [r1+40]     # checked
		long:
		ldxdw r0, [r1+40]     # checked
		exit`},
	{"a length as a signed number", `
		jslt r2, 48, short
		ldxdw r0, [r1+40]     # proved
		short: exit`},
	{"a length in 32 bits", `
		jlt32 r2, 48, short
		ldxdw r0, [r1+40]     # proved
		ldxdw r0, [r1+41]     # checked
		short: exit`},
	{"map", `
		lddw_value r1, 0, 56
		ldxdw r0, [r1]        # proved
		ldxdw r0, [r1+1]      # checked
		ldxdw r0, [r1-56]     # proved
		ldxdw r0, [r1-57]     # checked
		lddw_value r1, 1, 8
		ldxdw r0, [r1]        # proved
		stdw [r1], 1          # checked
		atomic_add [r1], r0   # checked
		exit`},
	{"element", `
		stw [r10-4], 3        # proved
		mov r2, r10
		add r2, -4
		lddw_map r1, 2
		call 1
		ldxw r3, [r0]         # checked
		mov r6, r0
		jeq r0, 0, none
		ldxw r3, [r0+8]       # proved
		ldxw r3, [r6+8]       # proved
		ldxw r3, [r0+9]       # checked
		stb [r0-1], 1         # checked
		exit
		none:
		ldxw r3, [r0]         # checked
		exit`},
	{"element of an unknown map", `
		ldxdw r1, [r1]        # proved
		mov r2, r10
		call 1
		jeq r0, 0, none
		ldxw r3, [r0]         # checked
		none: exit`},
	{"a masked index", `
		ldxdw r3, [r1]        # proved
		and r3, 7
		lsh r3, 3
		lddw_value r4, 0, 0
		add r4, r3
		ldxdw r0, [r4]        # proved
		ldxdw r0, [r4+1]      # checked
		exit`},
	{"a mask that is one too large", `
		ldxdw r3, [r1]        # proved
		and r3, 8
		lsh r3, 3
		lddw_value r4, 0, 0
		add r4, r3
		ldxdw r0, [r4]        # checked
		exit`},
	{"a mask that keeps the upper bits", `
		ldxb r3, [r1]         # proved
		and r3, -8
		jgt r3, 63, out
		lddw_value r4, 0, 0
		add r4, r3
		ldxdw r0, [r4]        # proved
		out: exit`},
	{"a remainder", `
		ldxdw r3, [r1]        # proved
		mod r3, 33
		mov r5, r1
		add r5, r3
		ldxdw r0, [r5]        # proved
		ldxdw r0, [r5+1]      # checked
		exit`},
	{"a remainder of a division by what may be 0", `
		ldxdw r3, [r1]        # proved
		ldxb r4, [r1]         # proved
		and r4, 31
		mod r3, r4
		add r1, r3
		ldxb r0, [r1]         # checked
		exit`},
	{"a compared index", `
		ldxw r3, [r1]         # proved
		jgt r3, 39, out
		add r1, r3
		ldxb r0, [r1]         # proved
		ldxh r0, [r1]         # checked
		out: exit`},
	{"compared with one more", `
		ldxw r3, [r1]         # proved
		jgt r3, 40, out
		add r1, r3
		ldxb r0, [r1]         # checked
		out: exit`},
	{"compared as a signed number", `
		ldxdw r3, [r1]        # proved
		jsgt r3, 39, out
		mov r4, r1
		add r4, r3
		ldxb r0, [r4]         # checked
		jslt r3, 0, out
		mov r4, r1
		add r4, r3
		ldxb r0, [r4]         # proved
		out: exit`},
	{"compared in 32 bits, used in 64", `
		ldxdw r3, [r1]        # proved
		jgt32 r3, 39, out
		mov r4, r1
		add r4, r3
		ldxb r0, [r4]         # checked
		mov32 r3, r3
		jgt32 r3, 39, out
		add r1, r3
		ldxb r0, [r1]         # proved
		out: exit`},
	{"signed in 32 bits", `
		ldxw r3, [r1]         # proved
		jsgt32 r3, 39, out
		mov r4, r1
		add r4, r3
		ldxb r0, [r4]         # checked
		out: exit`},
	{"wraparound of a sum", `
		ldxw r3, [r1]         # proved
		add32 r3, 1
		jgt r3, 39, out
		sub r3, 1
		add r1, r3
		ldxb r0, [r1]         # checked
		out: exit`},
	{"wraparound of a pointer", `
		ldxdw r3, [r1]        # proved
		add r1, r3
		ldxb r0, [r1]         # checked
		exit`},
	{"a negative shift", `
		ldxb r3, [r1]         # proved
		neg r3
		mov r4, r10
		add r4, r3
		ldxb r0, [r4]         # checked
		ldxb r0, [r4-1]       # proved
		ldxb r0, [r4-257]     # proved
		ldxb r0, [r4-258]     # checked
		exit`},
	{"sign extension", `
		ldxsb r3, [r1]        # proved
		mov r4, r10
		add r4, r3
		ldxb r0, [r4-128]     # proved
		ldxb r0, [r4-127]     # checked
		ldxb r0, [r4-384]     # proved
		ldxb r0, [r4-385]     # checked
		exit`},
	{"byte swaps", `
		mov r3, 39
		be16 r3
		mov r4, r1
		add r4, r3
		ldxb r0, [r4]         # checked
		mov r3, 39
		le16 r3
		add r1, r3
		ldxb r0, [r1]         # proved
		exit`},
	{"a join", `
		mov r3, 0
		jeq r2, 100, other
		mov r3, 39
		other:
		mov r4, r1
		add r4, r3
		ldxb r0, [r4]         # proved
		ldxb r0, [r4+1]       # checked
		exit`},
	{"a join of pointers into different memory", `
		lddw_value r3, 0, 0
		jeq r2, 100, other
		mov r3, r1
		other:
		ldxb r0, [r3]         # checked
		exit`},
	{"a join where one way is never gone", `
		mov r3, 5
		jne r3, 5, other
		ja over
		other:
		mov r3, 5000
		ldxb r0, [r3]         # checked
		over:
		add r1, r3
		ldxb r0, [r1]         # proved
		exit`},
	{"a loop that counts", `
		mov r3, 0
		mov r4, r1
		next:
		ldxb r0, [r4]         # proved
		ldxb r0, [r4+1]       # checked
		mov r5, r1
		add r5, r3
		ldxb r0, [r5]         # proved
		add r4, 1
		add r3, 1
		jlt r3, 40, next
		exit`},
	{"a loop that counts too far", `
		mov r3, 0
		next:
		mov r5, r1
		add r5, r3
		ldxb r0, [r5]         # checked
		add r3, 1
		jlt r3, 41, next
		exit`},
	{"a loop that counts down", `
		mov r3, 5
		mov r4, r1
		next:
		ldxdw r0, [r4]        # proved
		add r4, 8
		add r3, -1
		jne r3, 0, next
		exit`},
	{"a loop whose pointer is faster on one way", `
		mov r3, 0
		mov r4, r1
		next:
		ldxb r0, [r4]         # checked
		jset r0, 1, even
		add r4, 1
		even:
		add r4, 1
		add r3, 1
		jlt r3, 40, next
		exit`},
	{"what is in step only on one way", `
		mov r3, 0
		mov r4, 0
		next:
		jgt r3, 8, out
		mov r5, r1
		add r5, r4
		ldxb r0, [r5+24]      # checked
		jset r0, 1, even
		add r4, 1
		even:
		add r4, 1
		add r3, 1
		jlt r3, 39, next
		out: exit`},
	{"what is in step", `
		mov r3, 0
		mov r4, 0
		next:
		jgt r3, 8, out
		mov r5, r1
		add r5, r4
		ldxb r0, [r5+23]      # proved
		ldxb r0, [r5+24]      # checked
		add r4, 2
		add r3, 1
		jlt r3, 39, next
		out: exit`},
	{"a loop in a loop", `
		mov r3, 0
		outer:
		mov r4, 0
		inner:
		mov r5, r1
		add r5, r3
		add r5, r4
		ldxb r0, [r5]         # proved
		add r4, 1
		jlt r4, 8, inner
		add r3, 8
		jlt r3, 40, outer
		exit`},
	{"a loop without an end", `
		next:
		ldxb r0, [r1]         # checked
		add r1, 1
		ja next
		exit`},
	{"to the end of the context", `
		add r2, r1
		next:
		ldxb r0, [r1]         # proved
		ldxh r0, [r1]         # checked
		add r1, 1
		jlt r1, r2, next
		exit`},
	{"words to the end of the context", `
		add r2, r1
		mov r3, r1
		add r3, 2
		next:
		ldxh r0, [r1]         # proved
		ldxw r0, [r1]         # checked
		mov r1, r3
		add r3, 2
		jle r3, r2, next
		exit`},
	{"the end before the start", `
		mov r3, r1
		add r3, r2
		add r1, -8
		jgt r1, r3, out
		ldxdw r0, [r1]        # checked
		out: exit`},
	{"an end that may be below 0", `
		add r2, r1
		sub r2, 100
		jge r1, r2, out
		ldxb r0, [r1+50]      # checked
		out: exit`},
	{"an end within what is promised", `
		add r2, r1
		sub r2, 40
		jge r1, r2, out
		ldxb r0, [r1+40]      # proved
		ldxb r0, [r1+41]      # checked
		out: exit`},
	{"a signed comparison of 32 bits with the length", `
		ldxw r3, [r1]         # proved
		jsge32 r3, r2, out
		add r1, r3
		ldxb r0, [r1]         # checked
		out: exit`},
	{"a compared pointer", `
		ldxw r4, [r1]         # proved
		mov r3, r1
		add r3, r4
		mov r5, r3
		add r5, 4
		add r2, r1
		jgt r5, r2, out
		ldxw r0, [r3]         # proved
		ldxw r0, [r3+1]       # checked
		ldxb r0, [r3-1]       # checked
		out: exit`},
	{"an index compared with the length", `
		ldxdw r3, [r1]        # proved
		jge r3, r2, out
		add r1, r3
		ldxb r0, [r1]         # proved
		ldxb r0, [r1+1]       # checked
		out: exit`},
	{"a signed index compared with the length", `
		ldxsb r3, [r1]        # proved
		jsge r3, r2, out
		add r1, r3
		ldxb r0, [r1]         # checked
		out: exit`},
	{"an index below a negative number", `
		ldxsb r3, [r1]        # proved
		jsge r3, r2, out
		ldxdw r4, [r1]        # proved
		jgt r4, 1000, out
		jge r4, r3, out
		add r1, r4
		ldxb r0, [r1]         # checked
		out: exit`},
	{"what is left of the context", `
		ldxb r3, [r1]         # proved
		sub r2, r3
		jlt r2, 8, out
		add r1, r3
		ldxdw r0, [r1]        # checked
		out: exit`},
	{"a spilled pointer", `
		stxdw [r10-8], r1     # proved
		stb [r10-9], 1        # proved
		ldxdw r3, [r10-8]     # proved
		ldxb r0, [r3+39]      # proved
		stb [r10-1], 1        # proved
		ldxdw r3, [r10-8]     # proved
		ldxb r0, [r3]         # checked
		exit`},
	{"half a spilled pointer", `
		stxdw [r10-8], r1     # proved
		ldxw r3, [r10-8]      # proved
		ldxb r0, [r3]         # checked
		ldxdw r3, [r10-12]    # proved
		ldxb r0, [r3]         # checked
		exit`},
	{"a spilled number that is cut", `
		mov r3, -8
		stxw [r10-4], r3      # proved
		ldxw r4, [r10-4]      # proved
		mov r5, r10
		add r5, r4
		ldxb r0, [r5]         # checked
		lddw r3, 0x100000027
		stxw [r10-4], r3      # proved
		ldxw r4, [r10-4]      # proved
		add r1, r4
		ldxb r0, [r1]         # proved
		exit`},
	{"a spilled index", `
		ldxb r3, [r1]         # proved
		stxw [r10-4], r3      # proved
		ldxw r4, [r10-4]      # proved
		jgt r4, 39, out
		mov r5, r1
		add r5, r3
		ldxb r0, [r5]         # proved
		out: exit`},
	{"a spilled pointer and a stray store", `
		stxdw [r10-8], r1     # proved
		ldxdw r4, [r1]        # proved
		stdw [r4], 1          # checked
		ldxdw r3, [r10-8]     # proved
		ldxb r0, [r3]         # checked
		exit`},
	{"a spilled pointer and a store to the frame", `
		stxdw [r10-8], r1     # proved
		stxdw [r10-64], r1    # proved
		ldxb r4, [r1]         # proved
		and r4, 31
		mov r5, r10
		add r5, r4
		stb [r5-32], 1        # proved
		ldxdw r3, [r10-8]     # proved
		ldxb r0, [r3]         # checked
		ldxdw r3, [r10-64]    # proved
		ldxb r0, [r3]         # proved
		exit`},
	{"a spilled pointer and an atomic operation", `
		stxdw [r10-8], r1     # proved
		mov r3, 1
		atomic_add [r10-8], r3    # proved
		ldxdw r3, [r10-8]     # proved
		ldxb r0, [r3]         # checked
		exit`},
	{"a spilled pointer and a service that reads", `
		stxdw [r10-8], r1     # proved
		stw [r10-16], 1       # proved
		mov r2, r10
		add r2, -16
		lddw_map r1, 0
		call 1
		ldxdw r3, [r10-8]     # proved
		ldxb r0, [r3]         # proved
		exit`},
	{"a spilled pointer and a service that writes", `
		stxdw [r10-8], r1     # proved
		mov r1, r10
		add r1, -8
		mov r2, 8
		call 20
		ldxdw r3, [r10-8]     # proved
		ldxb r0, [r3]         # checked
		exit`},
	{"a spilled pointer and a local call", `
		stxdw [r10-8], r1     # proved
		mov r2, r10
		call_local wipe
		ldxdw r3, [r10-8]     # proved
		ldxb r0, [r3]         # checked
		exit
		wipe:
		stdw [r2-8], 0        # checked
		exit`},
	{"arguments of a local call", `
		mov r2, 39
		call_local get
		mov r6, r1
		mov r2, 0
		call_local get
		exit
		get:
		mov r3, r1
		add r3, r2
		ldxb r0, [r1]         # checked
		exit`},
	{"a pointer and an index as arguments", `
		mov r6, r1
		mov r2, 39
		call_local get
		mov r1, r6
		mov r2, 0
		call_local get
		ldxb r0, [r6]         # proved
		exit
		get:
		add r1, r2
		ldxb r0, [r1]         # proved
		ldxb r0, [r1+1]       # checked
		exit`},
	{"results of a local call", `
		mov r6, r1
		mov r3, r1
		call_local set
		ldxb r0, [r3]         # checked
		ldxb r0, [r6]         # proved
		exit
		set:
		mov r3, 0
		mov r6, 0
		exit`},
	{"a recursion", `
		mov r2, r10
		call_local again
		exit
		again:
		ldxb r0, [r2-1]       # checked
		ldxb r0, [r10-1]      # proved
		mov r2, r10
		call_local again
		exit`},
	{"a frame of the caller", `
		mov r6, r10
		call_local callee
		exit
		callee:
		ldxb r0, [r6-1]       # checked
		stb [r10-1], 1        # proved
		exit`},
	{"what atomic operations return", `
		mov r3, 4
		atomic_fetch_add [r1], r3     # proved
		mov r4, r1
		add r4, r3
		ldxb r0, [r4]         # checked
		mov r0, 4
		atomic_cmpxchg32 [r1], r3     # proved
		add r1, r0
		ldxb r0, [r1]         # checked
		exit`},
	{"copies", `
		ldxdw r3, [r1]        # proved
		mov r4, r3
		lsh r4, 3
		jgt r3, 4, out
		add r1, r4
		ldxdw r0, [r1]        # proved
		ldxdw r0, [r1+1]      # checked
		out: exit`},
	{"two pointers into the same memory", `
		lddw_value r3, 0, 0
		lddw_value r4, 0, 56
		add r4, 8
		next:
		ldxdw r0, [r3]        # checked
		ldxb r0, [r3]         # proved
		add r3, 1
		jlt r3, r4, next
		exit`},
	{"a null check of another value", `
		ldxb r3, [r1]         # proved
		jeq r3, 0, out
		lddw_map r1, 0
		mov r2, r10
		add r2, -4
		call 1
		ldxb r4, [r0]         # checked
		out: exit`},
}

// proofSpec assembles a program, and returns the comment of each access by slot.
func proofSpec(t testing.TB, text string) (spec *object.Spec, want map[int]string) {
	t.Helper()
	program, err := asm.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	var comments []string
	for line := range strings.Lines(text) {
		if _, comment, ok := strings.Cut(line, "# "); ok {
			comments = append(comments, strings.TrimSpace(comment))
		}
	}
	want = make(map[int]string)
	for slot, i := range program {
		if i.Op().Size() > 0 {
			want[slot], comments = comments[0], comments[1:]
		}
	}
	return &object.Spec{Name: "test", Instructions: program, Maps: []state.Spec{
		{Name: "words", ValueSize: 8, Entries: 8},
		{Name: "constants", ValueSize: 16, Entries: 1, ReadOnly: true},
		{Name: "cores", Kind: state.PerCore, ValueSize: 12, Entries: 4},
	}}, want
}

func TestProofs(t *testing.T) {
	services, err := service.NewTable(append(service.Linux(),
		service.Service{Number: 20, Args: []service.Kind{service.Writable, service.Length}, Func: fill})...)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range proofs {
		t.Run(c.name, func(t *testing.T) {
			s, want := proofSpec(t, c.text)
			p, err := verify.Verify(s, verify.Config{Services: services, Context: verify.Context{Size: 40, Readable: true, Writable: true}})
			if err != nil {
				t.Fatal(err)
			}
			why := p.Explain()
			for slot, word := range want {
				if i := p.At(slot); i.Proved != (word == "proved") {
					t.Errorf("%d %v: proved %v: %s", slot, i, i.Proved, why[slot])
				}
				if why[slot] == "" {
					t.Errorf("%d is not explained", slot)
				}
			}
		})
	}
}
