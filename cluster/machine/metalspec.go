package machine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"margay/cluster/folder"
	"margay/cluster/ledger"
	"margay/cluster/metal"
	"margay/cluster/power/file"
	"margay/cluster/provision"
	"margay/cluster/provision/firmware"
	"margay/cluster/roster"
	"margay/cluster/site"
	"margay/cluster/way"
	"margay/internal/nodeset"
	"margay/internal/uuid"
	"margay/kernel/abi/id"
	"margay/kernel/abi/node"
)

// MetalSpec is the part of a Spec of a machine whose nodes boot over a network of this host.
type MetalSpec struct {
	Interface  string       `json:"interface"`             // to that network
	Range      netip.Prefix `json:"range,omitzero"`        // as the user gave it; none: the interface's subnet
	ApproveAll bool         `json:"approve_all,omitempty"` // every machine that boots becomes a node
	Proxy      bool         `json:"proxy_dhcp,omitempty"`  // a server of the site gives addresses to what boots
	File       string       `json:"file,omitempty"`        // path of the machine file
	Plan       metal.Plan   `json:"plan"`                  // filled in by Up
	Cards      string       `json:"cards"`                 // path of the file with the cards of nodes
}

// prepareMetal finds the boot network, the nodes that the machine has from its beginning and what
// they boot, and enters all of it in the spec.
func prepareMetal(ctx context.Context, d Dir, o *UpOptions) error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("--substrate %s answers on ports of the network that only root may use: become root", node.Metal)
	}
	m := &o.Spec.Metal
	if err := m.checkFile(o.Told); err != nil {
		return err
	}
	var err error
	if m.Plan, err = metal.Find(m.Interface, m.Range, m.Proxy); err != nil {
		return err
	}
	cards, err := m.firstCards(o)
	if err != nil {
		return err
	}
	if err := writeCards(m.Cards, cards.List()); err != nil {
		return err
	}
	var numbers []uint32
	for _, c := range cards.List() {
		numbers = append(numbers, uint32(c.Node))
	}
	first, err := roster.Of(numbers)
	if err != nil {
		return err
	}
	o.Spec.Nodes = len(numbers)
	if err := d.writeRoster(first); err != nil {
		return err
	}
	return prepareMetalBoot(ctx, d, o)
}

// prepareMetalBoot finds what metal nodes boot.
func prepareMetalBoot(ctx context.Context, d Dir, o *UpOptions) error {
	files, err := provision.FindFirmware(ctx, firmware.Options{Progress: o.Progress})
	if err != nil {
		o.Told("only machines whose network card has an iPXE can boot: %v", err)
	}
	o.Spec.IPXEBIOS, o.Spec.IPXEUEFI = files.IPXEBIOS, files.IPXEUEFI
	if o.Spec.Kernel == "" {
		o.Told("the kernel is for network cards of virtual machines: give --kernel %s for others", provision.Generic)
	}
	image, err := provision.BuildImage(ctx, provision.ImageOptions{
		Program: o.Spec.Program, JobInit: o.Spec.JobInit, Kernel: o.Spec.Kernel, Metal: true, Told: o.Progress, CardFirmware: o.Spec.CardFirmware,
	})
	if err != nil {
		return err
	}
	if len(o.Spec.CardFirmware) > 0 {
		o.Told("%s", image.Manifest.FirmwareText())
	}
	return useImage(d, o, image, "")
}

// checkFile reports what the drivers of the machine file lack, before a node needs one.
func (m *MetalSpec) checkFile(told func(format string, args ...any)) error {
	if m.File == "" {
		return nil
	}
	f, err := file.Read(m.File)
	if err != nil {
		return err
	}
	if err := f.Check(); err != nil {
		return fmt.Errorf("%s: %w", m.File, err)
	}
	if unnamed := f.Unnamed(); len(unnamed) > 0 {
		told("%s has %s below power and not below nodes: the entries are for the machines that get these numbers by margay node approve", m.File, nodeset.Condense(unnamed))
	}
	return nil
}

// firstCards returns the cards of the machine file, and those that were approved for an earlier
// machine of this name, as far as they do not contradict the file.
func (m *MetalSpec) firstCards(o *UpOptions) (*metal.Cards, error) {
	base, err := ledger.Base()
	if err != nil {
		return nil, err
	}
	folder := way.Folder{What: "network cards", Path: filepath.Join(filepath.Dir(base), "cards"), Variable: site.StateVariable}
	dir, err := folder.Follow(way.Made(0o700))
	if err != nil {
		return nil, err
	}
	m.Cards = filepath.Join(dir, o.Spec.Name+".json")
	var all []metal.Card
	if m.File != "" {
		f, err := file.Read(m.File)
		if err != nil {
			return nil, err
		}
		for _, c := range f.Cards() {
			all = append(all, cardOfFile(c))
		}
	}
	cards, err := metal.NewCards(m.Plan, all)
	if err != nil {
		return nil, err
	}
	earlier, err := readCards(m.Cards)
	if err != nil {
		return nil, err
	}
	for _, c := range earlier {
		if mac, err := metal.ParseMAC(c.MAC); err == nil {
			if _, known := cards.Node(mac); known {
				continue
			}
		}
		if slices.ContainsFunc(all, func(own metal.Card) bool {
			return own.Node == c.Node && strings.EqualFold(own.UUID, c.UUID) && c.UUID != ""
		}) {
			continue
		}
		if err := cards.Add(c); err != nil {
			o.Told("a network card that was approved earlier must be approved again: %v", err)
		}
	}
	return cards, nil
}

// cardOfFile returns how the machine file knows a node.
func cardOfFile(c file.Card) metal.Card {
	known := metal.Card{Node: id.Node(c.Node), MAC: c.MAC.String()}
	if c.UUID != (uuid.ID{}) {
		known.UUID = c.UUID.String()
	}
	return known
}

// writeCards records the cards of nodes. A reader gets all of the last ones or of these, also after
// a crash of the host.
func writeCards(path string, all []metal.Card) error {
	text, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		return err
	}
	next := path + ".next"
	if err := errors.Join(writeFile(next, append(text, '\n')), syncFile(next)); err != nil {
		return err
	}
	return os.Rename(next, path)
}

func readCards(path string) (all []metal.Card, err error) {
	text, err := folder.Read(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &all)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return all, nil
}
