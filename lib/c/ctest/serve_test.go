package ctest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"

	"margay/internal/check"
	"margay/kernel/abi/onesided"
	"margay/kernel/abi/wire"
)

// serveWindow is the size of the window of serveProgram.
const serveWindow = 200

// serveProgram carries out the datagrams that it reads, each behind its length of two bytes, in a
// window, and prints the answers. Then it prints the window and the journal. Everything that a
// datagram may not reach ends where the memory ends that the program may touch.
const serveProgram = `#include <stdio.h>
#include "serve.h"
static void print(const void *b, size_t n)
{
	for (size_t i = 0; i < n; i++)
		printf("%02x", ((const unsigned char *)b)[i]);
	printf("\n");
}
int main(void)
{
	uint16_t n;
	struct onesided_journal *journal = calloc(1, sizeof *journal);
	char *window = calloc(1, WINDOW);
	while (fread(&n, sizeof n, 1, stdin) == 1) {
		char *datagram = malloc(n), *answer = malloc(ONESIDED_MOST);
		struct onesided_request q;
		if (n && fread(datagram, n, 1, stdin) != 1)
			return 1;
		if (serve_parse(&q, datagram, n))
			print(answer, serve_carry(journal, &q, datagram + sizeof q, 77, window, WINDOW, answer));
		else
			printf("no request\n");
		free(datagram);
		free(answer);
	}
	print(window, WINDOW);
	print(journal, sizeof *journal);
	free(window);
	free(journal);
	return 0;
}
`

// anyRequest returns a datagram that may be the next request of a journal, or nonsense.
func anyRequest(r *rand.Rand, next *uint64) []byte {
	kinds := []wire.RemoteKind{wire.RemotePut, wire.RemoteGet, wire.RemoteAdd, wire.RemoteSwap, wire.RemoteReply}
	q := onesided.Request{Pair: onesided.Pair{Source: 1, Target: 2}, Kind: kinds[r.IntN(len(kinds))], Number: *next, Offset: r.Uint64N(serveWindow + 16)}
	n := r.IntN(serveWindow + 16)
	switch q.Kind {
	case wire.RemoteAdd:
		n = 8
	case wire.RemoteSwap:
		n = 16
	}
	if q.Kind.Atomic() && r.IntN(8) != 0 {
		q.Offset &^= 7
	}
	switch r.IntN(40) {
	case 0:
		q.Offset = -r.Uint64N(2 * serveWindow) // added to a length it begins again at 0
	case 1:
		q.Number += r.Uint64N(3 * onesided.Outstanding)
	case 2:
		q.Number -= r.Uint64N(3 * onesided.Outstanding)
	case 3:
		q.Number = r.Uint64()
	case 4:
		n = onesided.MaxData + r.IntN(3)
	default:
		*next++
	}
	q.Length = uint16(n)
	b := q.Append(nil)
	for range n {
		if q.Kind == wire.RemoteGet {
			break
		}
		b = append(b, byte(r.IntN(3))) // so that a swap often finds what it expects
	}
	switch r.IntN(20) {
	case 0:
		b[r.IntN(len(b))] ^= 1 << r.IntN(8)
	case 1:
		b = b[:r.IntN(len(b))]
	case 2:
		b = append(b, make([]byte, r.IntN(onesided.Most))...)
	}
	return b
}

// C and Go carry out the same requests, with the same answers, and C touches nothing that is not
// the window's, the datagram's or the answer's.
func TestServe(t *testing.T) {
	r := rand.New(rand.NewPCG(check.Seed(t), 0))
	words := make([]uint64, (onesided.JournalSize+serveWindow)/8)
	memory := make([]byte, 8*len(words))
	mem, window := memory[:onesided.JournalSize], memory[onesided.JournalSize:]
	journal, err := onesided.OpenJournal(mem, onesided.ByRank)
	if err != nil {
		t.Fatal(err)
	}
	var input, want bytes.Buffer
	refused, next := 0, uint64(1)
	for range 20000 {
		b := anyRequest(r, &next)
		input.Write(binary.LittleEndian.AppendUint16(nil, uint16(len(b))))
		input.Write(b)
		q, data, err := onesided.ParseRequest(b)
		if err != nil {
			refused++
			fmt.Fprintln(&want, "no request")
			continue
		}
		answer, _ := journal.Carry(nil, &q, data, 77, func(uint8) []byte { return window })
		fmt.Fprintf(&want, "%x\n", answer)
		if a, _, err := onesided.ParseAnswer(answer); err == nil {
			next = a.Done + 1
		}
	}
	fmt.Fprintf(&want, "%x\n%x\n", window, mem)
	if refused < 1000 || next < 1000 {
		t.Errorf("%d datagrams were refused, and %d requests carried out", refused, next-1)
	}
	program := build(t, serveProgram, fmt.Sprintf("-DWINDOW=%d", serveWindow), "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
	agree(t, program, &input, want.String())
}
