package driver

import (
	"fmt"
	"strings"
)

// Lack is a firmware file that a driver has asked Linux for in vain. The driver may do without it.
type Lack struct {
	Driver string
	Device string // its name on its bus
	File   string // relative to /lib/firmware
}

// Linux logs a file that is not there as "DRIVER DEVICE: Direct firmware load for FILE failed with
// error -2" (drivers/base/firmware_loader/main.c).
const (
	lackMiddle = ": Direct firmware load for "
	lackEnd    = " failed with error -2"
)

// ParseLack returns what a line of Linux's log says about a firmware file that is not there.
func ParseLack(line string) (l Lack, ok bool) {
	line, ended := strings.CutSuffix(line, lackEnd)
	who, file, found := strings.Cut(line, lackMiddle)
	driver, device, both := strings.Cut(who, " ")
	l = Lack{Driver: driver, Device: device, File: file}
	return l, ended && found && both && driver != "" && device != "" && file != "" && !strings.Contains(device, " ")
}

func (l Lack) String() string {
	return fmt.Sprintf("driver %s asks for the firmware file %s for %s, and the node image does not have it: the device may not work "+
		"(margay machine up and margay image build have --card-firmware)", l.Driver, l.File, l.Device)
}
