package command

import "github.com/spf13/pflag"

// CardFirmware is the name of the flag that asks for firmware files of network cards.
const CardFirmware = "card-firmware"

// CardFirmwareFlag adds the flag CardFirmware to a command. The word stands for the files of the
// distribution, and the text says when the flag has an effect.
func CardFirmwareFlag(f *pflag.FlagSet, to *[]string, word, when string) {
	f.StringArrayVar(to, CardFirmware, nil, when+": put the firmware files that drivers of network cards name into the image: "+
		word+" (the distribution's, which are not free software: Debian's component non-free-firmware, Ubuntu's package linux-firmware), "+
		"or a folder of your own, as /lib/firmware; may be given again, and the first one that has a file counts (default: none)")
}
