// Package starter starts a node on another host and holds it there.
//
// The holder of the machine runs a launcher, and that runs a starter on the host. Their protocol
// goes over the launcher's standard input and output:
//
//	starter -> holder   a line with an Offer; lines before it come from the host's shell
//	holder -> starter   a line with the node's configuration, which has secrets
//	starter -> holder   the console of the node
//	holder -> starter   a Beat every BeatInterval
//
// The starter ends, and the node with it, when its input ends or is silent, and when the node ends.
// It is gone before the configuration if it offers an Error.
package starter

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"

	"margay/cluster/control"
	"margay/internal/printable"
	"margay/kernel/abi/node"
)

// Offer is what a starter says about its host and itself.
type Offer struct {
	Protocol uint32 `json:"protocol"`          // version of the control protocol
	Version  string `json:"version"`           // of its build
	Arch     string `json:"arch"`              // as Go names it
	Address  string `json:"address,omitempty"` // of the host, from which it reached serve
	CPUs     int    `json:"cpus,omitempty"`    // that it may use
	Memory   int64  `json:"memory,omitempty"`  // bytes that a batch system has given; 0: it has set no limit
	Error    string `json:"error,omitempty"`   // why no node can be started; empty: one can
}

// Bounds of an offer, and of the lines before it.
const (
	maxText  = 500  // of each text in it, in bytes
	maxCPUs  = 4096 // of a host
	maxMiB   = 1 << 30
	maxOffer = 8 << 10
	maxNoise = 64 << 10
)

// mark begins the line of an offer.
const mark = "margay-node-offer "

// line returns the offer as it is sent.
func (o Offer) line() ([]byte, error) {
	text, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	return append(append([]byte(mark), text...), '\n'), nil
}

// parseOffer reads a line without the mark. The offer is untrusted. Of an offer with an error, and
// of another version, the rest is not checked.
func parseOffer(text []byte) (o Offer, err error) {
	if err := json.Unmarshal(text, &o); err != nil {
		return Offer{}, fmt.Errorf("its offer of a node: %w", err)
	}
	o.Version, o.Arch, o.Error = printable.Short(o.Version, maxText), printable.Short(o.Arch, maxText), printable.Short(o.Error, maxText)
	if o.Error != "" || o.Protocol != control.Version { // the holder refuses it
		return o, nil
	}
	a, err := netip.ParseAddr(o.Address)
	if err != nil || !a.Is4() || a.IsUnspecified() || a.IsMulticast() {
		return Offer{}, fmt.Errorf("its offer of a node: %q is not the IPv4 address of a host", printable.Short(o.Address, maxText))
	}
	if o.CPUs < 1 || o.CPUs > maxCPUs {
		return Offer{}, fmt.Errorf("its offer of a node: %d CPUs, a host has 1 to %d", o.CPUs, maxCPUs)
	}
	if o.Memory < 0 || o.Memory > maxMiB<<20 {
		return Offer{}, fmt.Errorf("its offer of a node: %d bytes of memory", o.Memory)
	}
	return o, nil
}

// ErrNoOffer reports a launcher or starter that has ended without an offer.
var ErrNoOffer = errors.New("it ended without an offer of a node")

// ReadOffer reads the offer from a launcher's output. Lines before it go to noise.
func ReadOffer(r *bufio.Reader, noise io.Writer) (Offer, error) {
	for passed := 0; passed < maxNoise; {
		line, err := readLine(r, maxOffer)
		if text, ok := bytes.CutPrefix(line, []byte(mark)); ok && err == nil {
			return parseOffer(text)
		}
		_, _ = noise.Write(line)
		passed += len(line)
		switch {
		case errors.Is(err, io.EOF):
			return Offer{}, ErrNoOffer
		case err != nil && !errors.Is(err, errLongLine):
			return Offer{}, err
		}
	}
	return Offer{}, fmt.Errorf("the host's shell writes more than %d KiB before the offer of a node", maxNoise>>10)
}

// errLongLine reports a line that is longer than allowed.
var errLongLine = errors.New("too long a line")

// readLine reads a line of at most so many bytes, with its end. Of a longer one it returns the
// beginning and errLongLine.
func readLine(r *bufio.Reader, most int) (line []byte, err error) {
	for {
		piece, err := r.ReadSlice('\n')
		line = append(line, piece...)
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, err
		}
		if len(line) >= most {
			return line, errLongLine
		}
	}
}

// Configuration returns a configuration as it is sent.
func Configuration(c node.Config) ([]byte, error) {
	pretty, err := c.Encode()
	if err != nil {
		return nil, err
	}
	var line bytes.Buffer
	if err := json.Compact(&line, pretty); err != nil {
		return nil, err
	}
	line.WriteByte('\n')
	return line.Bytes(), nil
}

// maxConfiguration bounds a configuration, which includes the extensions of the machine, in bytes.
const maxConfiguration = 16 << 20

// readConfiguration reads a configuration.
func readConfiguration(r *bufio.Reader) (node.Config, error) {
	line, err := readLine(r, maxConfiguration)
	if err != nil {
		return node.Config{}, fmt.Errorf("read the configuration of the node: %w", err)
	}
	return node.Parse(line)
}
