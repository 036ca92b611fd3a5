package initramfs

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"strconv"
)

// Manifest describes an image.
type Manifest struct {
	Kernel       string   `json:"kernel"`                // release of the kernel the modules are of
	Arch         string   `json:"arch"`                  // Go's name of the processor architecture
	Source       string   `json:"source"`                // where the kernel came from, for people
	Lacks        []string `json:"lacks"`                 // guestkernel.Features that the kernel does not have
	Modules      []string `json:"modules"`               // names of the modules that every node loads, in load order
	Drivers      []string `json:"drivers"`               // names of those that a node loads if a device needs them, in load order
	BuiltIn      []string `json:"built_in"`              // modules asked for that are part of the kernel
	Absent       []string `json:"absent"`                // optional modules that the kernel does not have
	Firmware     []string `json:"firmware,omitempty"`    // firmware files that the modules name, and the image has
	NoFirmware   []string `json:"no_firmware,omitempty"` // those that no folder of Spec.Firmware has
	Uncompressed int64    `json:"uncompressed"`          // bytes of the archive
	Compressed   int64    `json:"compressed"`            // bytes of the image, also of a plain one
	SHA256       string   `json:"sha256"`                // of the image, in hexadecimal
	Entries      []Entry  `json:"entries"`
}

// Entry is one file of an image.
type Entry struct {
	Path     string
	Mode     fs.FileMode
	UID, GID uint32
	Size     int64  // bytes of content
	Target   string // of a symbolic link
}

// entryJSON is Entry with its mode in octal, as in chmod and stat.
type entryJSON struct {
	Path   string `json:"path"`
	Mode   string `json:"mode"`
	UID    uint32 `json:"uid"`
	GID    uint32 `json:"gid"`
	Size   int64  `json:"size"`
	Target string `json:"target,omitempty"`
}

// MarshalJSON writes the mode as st_mode in octal.
func (e Entry) MarshalJSON() ([]byte, error) {
	return json.Marshal(entryJSON{e.Path, fmt.Sprintf("%07o", unixMode(e.Mode)), e.UID, e.GID, e.Size, e.Target})
}

// UnmarshalJSON reads what MarshalJSON writes.
func (e *Entry) UnmarshalJSON(data []byte) error {
	var j entryJSON
	if err := json.Unmarshal(data, &j); err != nil {
		return err
	}
	mode, err := strconv.ParseUint(j.Mode, 8, 32)
	if err != nil {
		return fmt.Errorf("mode of %s: %w", j.Path, err)
	}
	*e = Entry{j.Path, goMode(uint32(mode)), j.UID, j.GID, j.Size, j.Target}
	return nil
}
