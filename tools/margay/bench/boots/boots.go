// Package boots measures the services that nodes boot from (cluster/boot): how long a number of
// machines needs that are switched on at the same moment.
//
// The machines are simulated: each is a station on loopback with an address of its own, which
// speaks DHCP, TFTP and HTTP as firmware and iPXE do, and runs the scripts that it gets. The
// services run in a process of their own, so that their memory and their processor time are known.
// All of it needs no rights.
package boots

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Plan is what to measure.
type Plan struct {
	Clients   []int  // how many machines
	Firmware  string // one of Firmwares
	Kernel    int64  // sizes in bytes
	Image     int64  //
	Turns     int    // how many fetch at the same time; 0: as many as the services let
	Strangers int    // strange stations, which disturb
	Slow      int    // further nodes, that read very slowly
	Patience  time.Duration
	Services  []string // the command of the process with the services, which calls Serve
}

// MostClients bounds the machines of a measurement.
const MostClients = 10_000

// loaderSize is the size of the iPXE for UEFI, in bytes.
const loaderSize = 850_000

// Result is what a number of machines has needed. Times are in seconds from the moment when all of
// them are switched on.
type Result struct {
	Clients   int     `json:"clients"`
	Booted    int     `json:"booted"`
	Median    float64 `json:"median_s"` // 0: none has booted
	P99       float64 `json:"p99_s"`
	Last      float64 `json:"last_s"`
	Bytes     int64   `json:"bytes"`       // that the stations have received of files
	Peak      int64   `json:"peak_kib"`    // of the memory of the services
	Processor float64 `json:"processor_s"` // of the services
	Waits     int64   `json:"waits"`       // scripts that let a node wait
	DHCP      int64   `json:"dhcp_repeated"`
	TFTP      int64   `json:"tftp_repeated"`
	HTTP      int64   `json:"http_resumed"`
	Refused   int64   `json:"refused"`
	Restarts  int64   `json:"restarts"` // of firmware whose boot has failed
	Error     string  `json:"error,omitempty"`
}

// Measure lets machines boot, for each number of them.
func Measure(ctx context.Context, p Plan, progress func(format string, args ...any)) (results []*Result, err error) {
	if err := enoughFiles(slices.Max(p.Clients) + p.Slow + p.Strangers); err != nil {
		return nil, err
	}
	folder, err := os.MkdirTemp("", "margay-bench-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	o := order{Turns: p.Turns, Kernel: filepath.Join(folder, "kernel"), Image: filepath.Join(folder, "image"), UEFI: filepath.Join(folder, "ipxe.efi")}
	sums := make(map[string]uint32)
	for _, f := range []struct {
		name, path string
		size       int64
	}{{kernelPath, o.Kernel, p.Kernel}, {imagePath, o.Image, p.Image}, {"/ipxe.efi", o.UEFI, loaderSize}} {
		if sums[f.name], err = writeNoise(f.path, f.size); err != nil {
			return nil, err
		}
	}
	for _, n := range p.Clients {
		progress("%d machines boot", n)
		r, err := measure(ctx, p, n, o, sums)
		if err != nil {
			return nil, err
		}
		results = append(results, r)
	}
	return results, nil
}

// enoughFiles reports an error if this process may not open as many files as machines need.
func enoughFiles(stations int) error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	if need := uint64(2*stations + 100); limit.Max < need {
		return fmt.Errorf("%d machines need %d open files, and %d are allowed (ulimit -H -n): measure fewer", stations, need, limit.Max)
	}
	return nil
}

// writeNoise writes a file that cannot be compressed, and returns its checksum.
func writeNoise(path string, size int64) (sum uint32, err error) {
	noise, text := rand.NewChaCha8([32]byte{}), make([]byte, size)
	_, _ = noise.Read(text) // never fails
	return crc32.Checksum(text, table), os.WriteFile(path, text, 0o600)
}

// measure lets a number of machines boot once.
func measure(ctx context.Context, p Plan, clients int, o order, sums map[string]uint32) (r *Result, err error) {
	if o.From, err = freePort(); err != nil {
		return nil, err
	}
	o.Nodes = clients + p.Slow
	services, err := startServices(ctx, p.Services, o)
	if err != nil {
		return nil, err
	}
	w := wire{server.Addr(), services.at.DHCP, services.at.TFTP, services.at.HTTP, o.From, sums}
	ctx, cancel := context.WithTimeoutCause(ctx, p.Patience, fmt.Errorf("it has not booted within %v", p.Patience))
	defer cancel()
	disturbed, calm := context.WithCancel(ctx)
	var others sync.WaitGroup
	for i := range p.Slow {
		others.Go(func() { w.beSlow(disturbed, clients+i) })
	}
	for i := range p.Strangers {
		others.Go(func() { w.disturb(disturbed, o.Nodes+i) })
	}
	if p.Slow+p.Strangers > 0 {
		_ = pause(ctx, headStart) // an end of ctx ends the boots as well
	}
	times, counts, failed := w.bootAll(ctx, p.Firmware, clients)
	peak := services.peak()
	calm()
	others.Wait()
	processor, err := services.end()
	if err != nil {
		return nil, err
	}
	r = &Result{
		Clients: clients, Booted: len(times), Bytes: counts.Bytes.Load(), Peak: peak, Processor: processor.Seconds(), Waits: counts.Waits.Load(),
		DHCP: counts.DHCP.Load(), TFTP: counts.TFTP.Load(), HTTP: counts.HTTP.Load(), Refused: counts.Refused.Load(), Restarts: counts.Restarts.Load(),
	}
	if failed != nil {
		r.Error = failed.Error()
	}
	r.finish(times)
	return r, nil
}

// headStart is how long those that disturb are there before the machines are switched on.
const headStart = 2 * time.Second

// bootAll lets machines boot, and returns the times of those that have, and an error of another
// one.
func (w wire) bootAll(ctx context.Context, firmware string, clients int) (times []time.Duration, c *counts, failed error) {
	c = new(counts)
	var all sync.WaitGroup
	var mu sync.Mutex
	begun := time.Now()
	for n := range clients {
		all.Go(func() {
			err := w.station(n, firmware, c).boot(ctx)
			took := time.Since(begun)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failed = cmp.Or(failed, err)
				return
			}
			times = append(times, took)
		})
	}
	all.Wait()
	return times, c, failed
}

// station makes the machine of a number.
func (w wire) station(n int, firmware string, c *counts) *station {
	return &station{wire: w, mac: macOf(n), address: addressOf(n), firmware: firmware, counts: c, client: w.newClient(addressOf(n)), tries: fetchTries}
}

// finish computes the times.
func (r *Result) finish(times []time.Duration) {
	if len(times) == 0 {
		return
	}
	slices.Sort(times)
	n := len(times)
	r.Median, r.P99, r.Last = times[(n-1)/2].Seconds(), times[min(n-1, n*99/100)].Seconds(), times[n-1].Seconds()
}

// freePort returns a port for DHCP clients that is free now.
func freePort() (uint16, error) {
	conn, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	a, err := netip.ParseAddrPort(conn.LocalAddr().String())
	return a.Port(), err
}
