package job

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"margay/cluster/control"
	"margay/cluster/launch"
	"margay/cluster/launch/proxy"
	"margay/cluster/site"
	"margay/kernel/abi/share"
	"margay/tools/margay/command"
)

// ownFolders are the folders of a job's root that Margay fills.
var ownFolders = []string{"/dev", "/proc", "/sys"}

// shared returns the folders to share, the lent ones and the values of --files, and adds their
// names on the nodes to the job. Its errors begin with the value.
func (f *Flags) shared(s *control.JobSpec, lent []launch.HostFolder) (folders []proxy.Folder, err error) {
	if most := share.MaxFolders - len(lent); len(f.Files) > most {
		return nil, fmt.Errorf("is given %d times, at most %d folders can be shared", len(f.Files), most)
	}
	var names []string
	for _, folder := range lent {
		names = append(names, folder.Name)
		folders = append(folders, proxy.Folder{Path: folder.Path, ReadOnly: true, Host: true})
		s.Shared = append(s.Shared, &control.SharedFolder{Path: []byte(folder.Name), ReadOnly: true})
	}
	for _, value := range f.Files {
		folder, name, err := sharedFolder(value, string(s.Dir))
		if err == nil {
			err = checkShared(name, names, s.Out)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", value, err)
		}
		names = append(names, name)
		folders = append(folders, folder)
		s.Shared = append(s.Shared, &control.SharedFolder{Path: []byte(name), ReadOnly: folder.ReadOnly})
	}
	return folders, nil
}

// sharedFolder reads DIR[=DEST][:ro]. A relative DEST is below dir, the working directory of the
// ranks. The name without DEST is the folder's here.
func sharedFolder(value, dir string) (folder proxy.Folder, name string, err error) {
	text, readOnly := strings.CutSuffix(value, ":ro")
	text, name, renamed := strings.Cut(text, "=")
	if text == "" || renamed && name == "" {
		return folder, "", errors.New("it is DIR, DIR=DEST, DIR:ro or DIR=DEST:ro")
	}
	if text, err = filepath.Abs(text); err != nil {
		return folder, "", err
	}
	info, err := os.Stat(text)
	if err == nil && !info.IsDir() {
		err = fmt.Errorf("%s is not a folder", text)
	}
	if err == nil {
		err = withoutMachines(text)
	}
	if err != nil {
		return folder, "", err
	}
	switch {
	case !renamed:
		name = text
	case !filepath.IsAbs(name):
		name = filepath.Join(dir, name)
	}
	return proxy.Folder{Path: text, ReadOnly: readOnly}, filepath.Clean(name), nil
}

// withoutMachines returns an error if the folder of machines is in a folder, or the other way
// round. There are keys in it, and programs that other jobs execute.
func withoutMachines(path string) error {
	base, err := site.Base()
	if err == nil {
		base, err = filepath.EvalSymlinks(base)
	}
	if err != nil {
		return nil // there are no machines of this host
	}
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return err
	}
	if within(base, real) || within(real, base) {
		return fmt.Errorf("ranks would reach the folder of machines, %s, with keys and programs of other jobs: share another folder, or set MARGAY_DIR", base)
	}
	return nil
}

// checkShared refuses a name on the nodes that cannot have a shared folder.
func checkShared(name string, others []string, out [][]byte) error {
	if name == "/" {
		return errors.New("the ranks need a root of their own: name another folder (DIR=DEST)")
	}
	for _, own := range ownFolders {
		if within(name, own) {
			return fmt.Errorf("%s is made by the nodes: name another folder (DIR=DEST)", own)
		}
	}
	for _, other := range others {
		if within(name, other) || within(other, name) {
			return fmt.Errorf("the ranks see %s and %s, and one is in the other", other, name)
		}
	}
	for _, path := range out {
		if within(string(path), name) {
			return fmt.Errorf("--out brings back %s, which is in it: what ranks write there is here at once", path)
		}
	}
	return nil
}

// within reports whether a path is a folder or below it. Both are clean and absolute.
func within(path, folder string) bool {
	return path == folder || strings.HasPrefix(path, strings.TrimSuffix(folder, "/")+"/")
}

// traceStderr is the value of --trace-io without a file.
const traceStderr = "stderr"

// traceIO lets a job print the requests for its shared files. It returns what ends that.
func (f *Flags) traceIO(a *command.App, o *launch.Options) (end func(), err error) {
	var w io.WriteCloser
	switch f.TraceIO {
	case "":
		return func() {}, nil
	case traceStderr:
		o.Trace = launch.NewTrace(a.Stderr)
	default:
		if w, err = os.Create(f.TraceIO); err != nil {
			return nil, err
		}
		o.Trace = launch.NewTrace(w)
	}
	return func() {
		err := o.Trace.Err()
		if w != nil {
			err = errors.Join(err, w.Close())
		}
		if err != nil {
			o.Status.Lossf("the trace of --trace-io is not complete: %v", err)
		}
	}, nil
}
