package initramfs

import (
	"bytes"
	"encoding/binary"
)

// A signed module ends with the signature, a structure with its length, and a mark
// (scripts/sign-file.c of Linux).
const (
	signatureMark    = "~Module signature appended~\n"
	signatureTrailer = 12 // bytes; the last four are the length, the most significant byte first
)

// unsigned returns a module without its signature, or the module itself if it has none.
func unsigned(module []byte) []byte {
	rest, ok := bytes.CutSuffix(module, []byte(signatureMark))
	if !ok || len(rest) < signatureTrailer {
		return module
	}
	signature := int64(binary.BigEndian.Uint32(rest[len(rest)-4:]))
	size := int64(len(rest)) - signatureTrailer - signature
	if size < 0 {
		return module
	}
	return rest[:size]
}
