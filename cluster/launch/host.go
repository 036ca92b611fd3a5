package launch

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"margay/kernel/abi/node"
)

// HostFolder is a folder of this host that a job shares.
type HostFolder struct {
	Path string // here
	Name string // on the nodes
}

// LendHost has a job of CollectHost find the host's programs, libraries and configuration on nodes
// that have none: it adds links to the files of the job, and returns folders that it must share,
// read-only. The folders have their own names, but for /etc, where nodes make files of each job: a
// link leads to each other world-readable file there. Links of the host stay links.
func (f *Files) LendHost() (folders []HostFolder, err error) {
	for _, name := range node.HostFolders {
		at := filepath.Join("/", name)
		info, err := os.Lstat(at)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err == nil && info.Mode().Type() == fs.ModeSymlink:
			err = f.copyLink(at)
		case err == nil && info.IsDir() && at == "/etc":
			from := filepath.Join(node.HostRoot, at)
			folders = append(folders, HostFolder{at, from})
			err = f.linkTo(from, at)
		case err == nil && info.IsDir():
			folders = append(folders, HostFolder{at, at})
		}
		if err != nil {
			return nil, err
		}
	}
	return folders, nil
}

// linkTo adds links to the files of a folder of the host, which is elsewhere on the nodes.
func (f *Files) linkTo(elsewhere, folder string) error {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return err
	}
	for _, e := range entries {
		at := filepath.Join(folder, e.Name())
		info, err := e.Info()
		switch {
		case errors.Is(err, fs.ErrNotExist), err == nil && slices.Contains(made, at):
			continue
		case err == nil && info.Mode().Type() == fs.ModeSymlink:
			err = f.copyLink(at)
		case err == nil && (info.IsDir() && info.Mode().Perm()&0o005 == 0o005 || info.Mode().IsRegular() && info.Mode().Perm()&0o004 != 0):
			f.addLink(at, filepath.Join(elsewhere, e.Name()))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// copyLink adds a link of the host.
func (f *Files) copyLink(at string) error {
	target, err := os.Readlink(at)
	if err == nil {
		f.addLink(at, target)
	}
	return err
}

func (f *Files) addLink(at, target string) {
	f.List = append(f.List, File{Path: at, As: at, Link: target, Mode: fs.ModeSymlink | 0o777})
}
