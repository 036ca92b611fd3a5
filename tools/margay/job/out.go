package job

import (
	"fmt"
	"os"
	"path"
	"strings"

	"margay/cluster/launch/bring"
)

// targets reads the values of --out. A path that is not absolute is below dir, the working
// directory of the ranks. Without a destination, a file has the same name here as there.
func targets(values []string, dir string) (list []bring.Target, err error) {
	bytes := 0
	for _, value := range values {
		name, dest, given := strings.Cut(value, "=")
		if name == "" || given && dest == "" {
			return nil, fmt.Errorf("--out %s: it is PATH or PATH=DEST", value)
		}
		t := bring.Target{Path: path.Clean(name), Dest: dest}
		if !path.IsAbs(name) {
			t.Path = path.Join(dir, name)
		}
		if !given {
			t.Dest = pattern(t.Path)
		}
		if t.Path == "/" && !given {
			return nil, fmt.Errorf("--out %s: all files of the nodes need a folder of their own here: --out /=DEST", value)
		}
		slash := strings.HasSuffix(t.Dest, "/")
		if !path.IsAbs(t.Dest) {
			here, err := os.Getwd()
			if err != nil {
				return nil, fmt.Errorf("--out %s: %w", value, err)
			}
			t.Dest = path.Join(pattern(here), t.Dest)
		}
		t.Dest = path.Clean(t.Dest)
		if slash {
			t.Dest += "/" // a folder, into which a file goes
		}
		for _, other := range list {
			if below(t.Path, other.Path) || below(other.Path, t.Path) {
				return nil, fmt.Errorf("--out %s: %s and %s are one in the other", value, t.Path, other.Path)
			}
		}
		if err := bring.CheckDest(t.Dest); err != nil {
			return nil, fmt.Errorf("--out %s: %w", value, err)
		}
		if bytes += len(t.Path) + 8; bytes > maxOut {
			return nil, fmt.Errorf("--out: the %d paths have more than %d KiB: name a folder instead of its files", len(values), maxOut>>10)
		}
		list = append(list, t)
	}
	return list, nil
}

// pattern returns the pattern of a destination that stands for a path as it is.
func pattern(name string) string { return strings.ReplaceAll(name, "%", "%%") }

// maxOut bounds all paths, in bytes. A job's init gets them in one packet (package link), in JSON.
const maxOut = 128 << 10

// below reports whether a path is another one, or in it.
func below(name, folder string) bool {
	return name == folder || folder == "/" || strings.HasPrefix(name, folder+"/")
}
