package initramfs

import (
	"encoding/json"
	"strings"
	"testing"

	"margay/initramfs/guestkernel"
)

func TestCmdline(t *testing.T) {
	const base = "console=ttyS0 panic=-1 loglevel=4"
	const rest = " irqaffinity=0 nowatchdog nosoftlockup skew_tick=1 tsc=nowatchdog damon_stat.enabled=0 psi=0"
	full := guestkernel.Kernel{Arch: "amd64"}
	for name, c := range map[string]struct {
		kernel  guestkernel.Kernel
		profile Profile
		cores   int
		extra   []string
		want    string
	}{
		"isolated": {full, Isolated, 4, nil,
			base + " isolcpus=managed_irq,domain,1-3 nohz_full=1-3 rcu_nocbs=1-3" + rest},
		"sched": {full, Sched, 4, nil,
			base + " isolcpus=managed_irq,1-3 nohz_full=1-3 rcu_nocbs=1-3" + rest},
		"ticking": {full, Ticking, 4, nil,
			base + " isolcpus=managed_irq,domain,1-3" + rest},
		"one application core": {full, Isolated, 2, nil,
			base + " isolcpus=managed_irq,domain,1 nohz_full=1 rcu_nocbs=1" + rest},
		"all cores": {full, Isolated, AllCores, nil,
			base + " isolcpus=managed_irq,domain,1-N nohz_full=1-N rcu_nocbs=1-N" + rest},
		"system core only": {full, Isolated, 1, nil, base},
		"extra":            {full, Isolated, 1, []string{"loglevel=7", "a=b"}, base + " loglevel=7 a=b"},
		"no nohz_full": {guestkernel.Kernel{Arch: "amd64", Lacks: []string{"nohz_full", "rcu_nocb"}}, Isolated, 3, nil,
			base + " isolcpus=managed_irq,domain,1-2" + rest},
		"no isolation": {guestkernel.Kernel{Arch: "amd64", Lacks: []string{"cpu_isolation"}}, Sched, 3, nil,
			base + " nohz_full=1-2 rcu_nocbs=1-2" + rest},
		"arm": {guestkernel.Kernel{Arch: "arm64"}, Isolated, 1, nil, "console=ttyAMA0 panic=-1 loglevel=4"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Cmdline(c.kernel, c.profile, c.cores, c.extra...)
			if err != nil || got != c.want {
				t.Errorf("%v\n got %s\nwant %s", err, got, c.want)
			}
		})
	}
}

// Each parameter depends on a feature that exists, or its lack would never be noticed.
func TestQuietFeatures(t *testing.T) {
	for _, q := range quiet {
		if q.feature != "" && guestkernel.Describe(q.feature) == guestkernel.Describe("nonsense") {
			t.Errorf("%s needs the unknown feature %s", q.text, q.feature)
		}
	}
}

func TestCmdlineErrors(t *testing.T) {
	k := guestkernel.Kernel{Arch: "amd64"}
	for name, c := range map[string]struct {
		kernel  guestkernel.Kernel
		profile Profile
		cores   int
		extra   string
	}{
		"no cores":     {k, Isolated, 0, ""},
		"profile":      {k, Profile(7), 2, ""},
		"architecture": {guestkernel.Kernel{}, Isolated, 2, ""},
		"line break":   {k, Isolated, 2, "a\nb"},
		"too long":     {k, Isolated, 2, strings.Repeat("x", maxCmdline)},
	} {
		if line, err := Cmdline(c.kernel, c.profile, c.cores, c.extra); err == nil {
			t.Errorf("%s: accepted as %q", name, line)
		}
	}
}

func TestProfile(t *testing.T) {
	for _, p := range []Profile{Isolated, Ticking, Sched} {
		if back, err := ParseProfile(p.String()); err != nil || back != p {
			t.Errorf("%v became %v, %v", p, back, err)
		}
	}
	if _, err := ParseProfile("quiet"); err == nil || !strings.Contains(err.Error(), "isolated, ticking, sched") {
		t.Errorf("error %v", err)
	}
	data, err := json.Marshal(map[string]Profile{"p": Sched})
	var back map[string]Profile
	if err != nil || string(data) != `{"p":"sched"}` || json.Unmarshal(data, &back) != nil || back["p"] != Sched {
		t.Errorf("%s, %v, %v", data, back, err)
	}
}
