package machine

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"margay/cluster/client"
	"margay/cluster/site"
	"margay/kernel/abi/node"
)

// A machine on a full disk is refused before anything is written, with the way out.
func TestTooFull(t *testing.T) {
	for name, test := range map[string]struct {
		disk unix.Statfs_t
		root bool
		full bool
	}{
		"room":                {unix.Statfs_t{Blocks: 100, Bavail: 32, Bsize: 4096}, false, false},
		"almost full":         {unix.Statfs_t{Blocks: 100, Bavail: 31, Bsize: 4096}, false, true},
		"full":                {unix.Statfs_t{Blocks: 100, Bsize: 4096}, false, true},
		"full for root, too":  {unix.Statfs_t{Blocks: 100, Bsize: 4096}, true, true},
		"room for root alone": {unix.Statfs_t{Blocks: 100, Bfree: 99, Bsize: 4096}, false, true},
		"room for root":       {unix.Statfs_t{Blocks: 100, Bfree: 99, Bsize: 4096}, true, false},
		"it does not say":     {unix.Statfs_t{Bsize: 4096}, false, false},
	} {
		err := tooFull("/run/margay", &test.disk, test.root)
		if (err != nil) != test.full || err != nil && (!strings.Contains(err.Error(), "the file system of /run/margay has") || !strings.Contains(err.Error(), "MARGAY_DIR")) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A machine that does not come up leaves no folder of all machines that was not there before.
func TestNoBaseIsLeft(t *testing.T) {
	for name, missing := range map[string]bool{"made": true, "there before": false} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(base(t), "machines")
			t.Setenv(site.BaseVariable, dir)
			if !missing {
				if err := os.Mkdir(dir, 0o700); err != nil {
					t.Fatal(err)
				}
			}
			// It fails in prepare: nothing is run.
			spec := Spec{Name: "m", Nodes: 1, Cores: 1, Substrate: node.Virtual, MemoryMiB: 512, Profile: "isolated", Boot: BootKernel, Accel: AccelAuto, QEMU: "/there/is/none"}
			if err := Up(t.Context(), UpOptions{Spec: spec, Holder: []string{"/bin/false"}, Told: t.Logf}); err == nil {
				t.Fatal("it is up")
			}
			if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) != missing {
				t.Error(err)
			}
		})
	}
}

// The wait for a serve that never answers, as on a full disk, is bounded.
func TestServeNeverAnswers(t *testing.T) {
	base(t)
	d := created(t, "m")
	if err := os.WriteFile(d.Log("serve"), []byte("the store is broken\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		result := make(chan error, 1)
		go func() { result <- awaitNodes(t.Context(), d, UpOptions{Told: t.Logf}, make(chan error)) }()
		select {
		case err := <-result:
			if !errors.Is(err, client.ErrNoServe) || !strings.HasSuffix(err.Error(), "; the last lines of the log of serve:\n    the store is broken") {
				t.Errorf("the error is %v", err)
			}
		case <-time.After(time.Hour):
			t.Error("it still waits")
		}
	})
}
