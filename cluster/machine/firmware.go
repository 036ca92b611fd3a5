package machine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"margay/cluster/folder"
	"margay/internal/printable"
	"margay/kernel/abi/id"
)

// maxFirmwareLog bounds the file with what the firmware of a node has kept, in bytes.
const maxFirmwareLog = 1 << 20

// keepFirmwareLog writes what the firmware of a node has kept of earlier boots to its file, after
// what was written since first was set. It is on the disk without an error, and the file is as it
// was with one. A node can have written the text.
func (d Dir) keepFirmwareLog(number id.Node, text []byte, first bool) error {
	path := d.FirmwareLog(number)
	var all []byte
	if !first {
		earlier, err := folder.Read(path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		all = earlier
	}
	all = fmt.Appendf(all, "-- kept by the firmware of node%d, and read on %s --\n", number, time.Now().Format(time.DateTime))
	all = append(all, printable.Lines(string(text))...)
	if all[len(all)-1] != '\n' {
		all = append(all, '\n')
	}
	if len(all) > maxFirmwareLog {
		return fmt.Errorf("the log of the firmware of node%d would have %d bytes, at most %d are kept for a boot", number, len(all), maxFirmwareLog)
	}
	next := path + ".next"
	if err := errors.Join(writeFile(next, all), syncFile(next)); err != nil {
		return err
	}
	if err := os.Rename(next, path); err != nil {
		return err
	}
	names, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(names.Sync(), names.Close())
}

// removeFirmwareLog removes what the firmware of a node has kept.
func (d Dir) removeFirmwareLog(number id.Node) error {
	path := d.FirmwareLog(number)
	return removeFiles(path, path+".next")
}
