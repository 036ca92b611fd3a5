package guestkernel

import (
	"bufio"
	"io"
	"os"
	"strings"
)

// Feature is an optional kernel feature that a node uses.
type Feature struct {
	Name    string
	Options []string // all must be "y"
	Without string   // what a node does without it
}

// FeatureConfig in Kernel.Lacks means that the configuration is unknown. Then all Features count as
// missing.
const FeatureConfig = "config"

// Features lists what Load looks for.
var Features = []Feature{
	{"sched_ext", []string{"SCHED_CLASS_EXT"}, "the sched slot is enforced by priorities instead of sched_ext"},
	{"cpu_isolation", []string{"CPU_ISOLATION"}, "the kernel places its own work on application cores"},
	{"nohz_full", []string{"NO_HZ_FULL"}, "the timer tick interrupts application cores"},
	{"rcu_nocb", []string{"RCU_NOCB_CPU"}, "RCU callbacks run on application cores"},
	{"bpf", []string{"BPF_SYSCALL", "BPF_JIT"}, "extensions are not accelerated by the kernel"},
	{"btf", []string{"DEBUG_INFO_BTF"}, "neither sched_ext nor kernel services are open to extensions"},
	{"namespaces", []string{"PID_NS", "IPC_NS", "UTS_NS", "NET_NS"}, "jobs cannot be kept apart"},
	{"memory_limit", []string{"MEMCG"}, "the memory of a job is not limited"},
	{"process_limit", []string{"CGROUP_PIDS"}, "the number of processes of a job is not limited"},
	{"cpusets", []string{"CPUSETS"}, "cores cannot be partitioned at run time"},
}

// Describe returns the consequence of a missing feature.
func Describe(name string) string {
	if name == FeatureConfig {
		return "the kernel's configuration was not found, so each feature is taken as lacking"
	}
	for _, f := range Features {
		if f.Name == name {
			return f.Without
		}
	}
	return "unknown feature"
}

// lacks returns the names of the features missing in a configuration; nil options mean an unknown
// configuration.
func lacks(options map[string]string) []string {
	missing := []string{}
	if options == nil {
		missing = append(missing, FeatureConfig)
	}
	for _, f := range Features {
		for _, o := range f.Options {
			if options[o] != "y" {
				missing = append(missing, f.Name)
				break
			}
		}
	}
	return missing
}

// maxConfig bounds the bytes read of a configuration file.
const maxConfig = 4 << 20

func readConfig(path string) (map[string]string, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return parseConfig(io.LimitReader(f, maxConfig))
}

// parseConfig reads lines CONFIG_NAME=VALUE; anything else is a comment.
func parseConfig(r io.Reader) (map[string]string, error) {
	options := map[string]string{}
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		assignment, ok := strings.CutPrefix(lines.Text(), "CONFIG_")
		if !ok {
			continue
		}
		if name, value, ok := strings.Cut(assignment, "="); ok {
			options[name] = strings.Trim(value, `"`)
		}
	}
	return options, lines.Err()
}
