package provision

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"margay/initramfs"
)

// Folders with firmware files are taken as they are, and without a question there are none. A word
// that is neither a folder nor Nonfree is refused.
func TestCardFirmware(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, folders := range [][]string{nil, {dir}, {dir, "/"}} {
		got, err := findCards(t.Context(), ImageOptions{CardFirmware: folders}, initramfs.Spec{}, "")
		if err != nil || !slices.Equal(got, folders) {
			t.Errorf("%q: %q, %v", folders, got, err)
		}
	}
	for _, word := range []string{"", "non-free", file} {
		_, err := findCards(t.Context(), ImageOptions{CardFirmware: []string{dir, word}}, initramfs.Spec{}, "")
		if err == nil || !strings.Contains(err.Error(), `"`+word+`" is not a folder (nonfree stands for the ones of the distribution)`) {
			t.Errorf("%q: %v", word, err)
		}
	}
	if _, err := findCards(t.Context(), ImageOptions{CardFirmware: []string{Nonfree}}, initramfs.Spec{}, ""); err == nil || !strings.Contains(err.Error(), "kernel version") {
		t.Errorf("an image that cannot be made: %v", err)
	}
}
