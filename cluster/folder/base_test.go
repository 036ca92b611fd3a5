package folder_test

import (
	"errors"
	"os"
	"strings"
	"testing"

	"margay/cluster/folder"
)

// The error names a folder of another user in XDG_RUNTIME_DIR, as su leaves it, when no machine can
// be made in it.
func TestForeignRuntimeFolder(t *testing.T) {
	refused := errors.New("permission denied")
	t.Setenv("MARGAY_DIR", "")
	other := "/" // of root
	if os.Getuid() == 0 {
		other = t.TempDir()
		if err := os.Chown(other, 65534, 65534); err != nil {
			t.Fatal(err)
		}
	}
	for dir, foreign := range map[string]bool{other: true, t.TempDir(): false, "": false, "/none": false} {
		t.Setenv("XDG_RUNTIME_DIR", dir)
		err := folder.ForeignRuntime(refused)
		if named := strings.Contains(err.Error(), "XDG_RUNTIME_DIR="+dir+" belongs to user "); named != foreign || !errors.Is(err, refused) {
			t.Errorf("%s: %v", dir, err)
		}
	}
}
