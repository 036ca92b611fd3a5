package qemu

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"
)

// The tests of the probe never use KVM: the device is /dev/null and QEMU a script, or the probe
// below it runs with TCG.

func TestProbeKVM(t *testing.T) {
	cfg := Config{Name: "probe", Kernel: kernel(t, "", hangs)}
	cases := []struct{ name, marker, commands, want string }{
		{"marker", "up", `case "$*" in *"-accel kvm -cpu host"*) echo "node is up";; esac; exec sleep 1000`, ""},
		{"power off", "", "exit 0", ""},
		{"refused", "up", "echo 'failed to initialize kvm' >&2; exit 1", "failed to initialize kvm"},
		{"refused, no marker", "", "echo 'failed to initialize kvm' >&2; exit 1", "failed to initialize kvm"},
		{"crash", "up", "echo Kernel panic; kill -ABRT $$", "Kernel panic"},
		{"power off without marker", "up", "exit 0", "powered off"},
		{"hang", "up", "echo booting; exec sleep 1000", "deadline"},
		{"hang, no marker", "", "exec sleep 1000", "deadline"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			limit := 30 * time.Second
			if c.want == "deadline" {
				limit = 300 * time.Millisecond
			}
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			err := find(t, script(t, okVersion, c.commands)).probeKVM(ctx, os.DevNull, cfg, c.marker)
			if c.want == "" && err != nil {
				t.Errorf("got %v", err)
			} else if c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("got %v, want ...%s...", err, c.want)
			}
		})
	}
	e := find(t, script(t, okVersion, "exit 0"))
	if err := e.probeKVM(t.Context(), "/nonexistent/kvm", cfg, ""); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no device: %v", err)
	}
}

func TestProbeBootsARealGuest(t *testing.T) {
	e := installed(t)
	if err := e.probe(t.Context(), Config{Name: "probe", Kernel: kernel(t, "marker\n", hangs)}, "marker"); err != nil {
		t.Error(err)
	}
	if err := e.probe(t.Context(), Config{Name: "probe", Kernel: kernel(t, "", restarts)}, ""); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := e.probe(ctx, Config{Name: "probe", Kernel: kernel(t, "", hangs)}, ""); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a guest that hangs: %v", err)
	}
}
