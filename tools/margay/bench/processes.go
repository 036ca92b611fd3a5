package bench

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// process is a process of this host.
type process struct {
	pid, parent int
	used        time.Duration // processor time since its start, in ticks
}

// tick is the unit of times in /proc/PID/stat: USER_HZ of every architecture that Margay runs on.
const tick = time.Second / 100

// allProcesses returns the processes of this host. One that ends while this reads may be missing.
func allProcesses() (all []process, err error) {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil, err
	}
	for _, path := range stats {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		if p, ok := parseStat(string(text)); ok {
			all = append(all, p)
		}
	}
	return all, nil
}

// parseStat reads /proc/PID/stat (proc_pid_stat(5)).
func parseStat(text string) (p process, ok bool) {
	number, _, _ := strings.Cut(text, " ")
	end := strings.LastIndex(text, ")") // of the name, which may hold anything
	fields := strings.Fields(text[end+1:])
	if end < 0 || len(fields) < 13 {
		return p, false
	}
	var numbers [4]int
	for i, field := range []string{number, fields[1], fields[11], fields[12]} { // user and system time
		var err error
		if numbers[i], err = strconv.Atoi(field); err != nil {
			return p, false
		}
	}
	return process{numbers[0], numbers[1], time.Duration(numbers[2]+numbers[3]) * tick}, true
}

// family returns the processes with these numbers, and all below them.
func family(all []process, roots ...int) (members []process) {
	children, byPID := make(map[int][]int), make(map[int]process)
	for _, p := range all {
		children[p.parent] = append(children[p.parent], p.pid)
		byPID[p.pid] = p
	}
	for list := roots; len(list) > 0; {
		pid := list[0]
		list = append(list[1:len(list):len(list)], children[pid]...)
		if p, ok := byPID[pid]; ok {
			members = append(members, p)
		}
		delete(byPID, pid) // processes that were read at different times may form a circle
		delete(children, pid)
	}
	return members
}
