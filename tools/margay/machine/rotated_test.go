package machine

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"margay/qemu/console"
)

// The console of a node is followed when its file is rotated.
func TestFollowRotated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "console")
		log, err := console.New(console.Config{Path: path, MaxBytes: 64})
		if err != nil {
			t.Fatal(err)
		}
		defer log.Close()
		var got, want bytes.Buffer
		out := io.MultiWriter(log, &want)
		fmt.Fprintln(out, "first")
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		go copyFollowing(t.Context(), &got, f, func() error { return nil })
		for i := range 20 {
			fmt.Fprintf(out, "line %d\n", i)
			if i%3 == 0 {
				time.Sleep(2 * followPause)
			}
		}
		time.Sleep(2 * followPause)
		synctest.Wait()
		if got.String() != want.String() {
			t.Errorf("%q", got.String())
		}
		if files, err := filepath.Glob(path + "*"); err != nil || len(files) != 2 || strings.Count(want.String(), "\n") != 21 {
			t.Errorf("%v: %v", files, err)
		}
	})
}
