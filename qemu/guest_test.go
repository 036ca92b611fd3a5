package qemu

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"
)

// What the test kernel does after it has printed its text.
type ending []byte

var (
	restarts = ending{0xb0, 0xfe, 0xe6, 0x64, 0xf4, 0xeb, 0xfd} // mov al,0xfe; out 0x64,al; hlt; jmp -1
	hangs    = ending{0xfa, 0xf4, 0xeb, 0xfd}                   // cli; hlt; jmp -1
	repeats  = ending{0xeb, 0xe5}                               // jmp to the first instruction
)

// kernel makes a file that boots like Linux: 16-bit x86 code, as the boot protocol had it before
// version 2.00, that prints a text on the first serial port. It is loaded to a segment at DS and
// entered at its offset 0x200.
func kernel(t testing.TB, text string, end ending) string {
	t.Helper()
	code := []byte{
		0xbe, 0, 0, // mov si, text
		0xac,       // next: lodsb
		0x84, 0xc0, // test al,al
		0x74, 17, // jz end
		0x88, 0xc4, // mov ah,al
		0xba, 0xfd, 0x03, // mov dx,0x3fd
		0xec,       // wait: in al,dx
		0xa8, 0x20, // test al,0x20
		0x74, 0xfb, // jz wait
		0x88, 0xe0, // mov al,ah
		0xb2, 0xf8, // mov dl,0xf8
		0xee,       // out dx,al
		0xeb, 0xea, // jmp next
	}
	const entry, setupSectors = 0x200, 4
	code = append(code, end...)
	binary.LittleEndian.PutUint16(code[1:], uint16(entry+len(code)))
	image := make([]byte, (setupSectors+1)*512+16)
	image[0x1f1] = setupSectors
	copy(image[entry:], append(append(code, text...), 0))
	path := filepath.Join(t.TempDir(), "kernel")
	if err := os.WriteFile(path, image, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
