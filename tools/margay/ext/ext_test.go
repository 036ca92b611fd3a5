package ext_test

import (
	"os"
	"path/filepath"
	"testing"

	"margay/cluster/control"
	"margay/tools/margay/margaytest"
)

// A file that is not an object is refused before serve is asked.
func TestInsertText(t *testing.T) {
	margaytest.Play(t, "m", func(_ *control.Conn, f *control.Frame) { t.Errorf("serve is asked: %v", f.Message()) })
	text := filepath.Join(t.TempDir(), "README.md")
	if err := os.WriteFile(text, []byte("# Extensions\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	status, _, stderr := margaytest.Margay("", "ext", "insert", text)
	margaytest.Wants(t, status, 125, stderr, "margay: "+text+" is not an ELF object; clang -target bpf makes them\n")
}
