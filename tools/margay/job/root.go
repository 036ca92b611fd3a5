package job

import (
	"context"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"margay/cluster/cache"
	"margay/cluster/control"
	"margay/cluster/launch"
	"margay/cluster/launch/image"
	"margay/kernel/abi/node"
	"margay/tools/margay/command"
)

// rootHost is the value of --root for the host's programs. A folder of that name is ./host.
const rootHost = "host"

// Bounds of unpacked images, in MiB.
const (
	layersKept = 8 << 10 // layers in the cache, but for those in use
	imageLimit = 8 << 10 // of one image, if --root-limit gives none
)

// layersDir is the folder of the cache that has the layers of images.
const layersDir = "layers"

// addRootFlags adds the flags about what ranks see as /.
func addRootFlags(fs *pflag.FlagSet, f *Flags) {
	fs.StringVar(&f.Root, "root", "", "what the ranks see as /: a folder, a tar file or an image, or the programs of the `host`")
	fs.IntVar(&f.RootLimit, "root-limit", imageLimit, "how large an image of --root may be when it is unpacked, in `MiB`")
}

// openRoot reads the description of an image, if --root names one.
func (f *Flags) openRoot() (err error) {
	if f.Root == "" || f.Root == rootHost {
		return nil
	}
	f.image, err = image.Open(f.Root, runtime.GOARCH)
	if err != nil && (!errors.Is(err, image.ErrNone) || image.Named(f.Root)) {
		return fmt.Errorf("run: --root %s: %w", f.Root, err)
	}
	return nil
}

// ownProgram returns the job of the program that an image names for itself.
func (f *Flags) ownProgram() ([]part, error) {
	if f.image == nil {
		return nil, fmt.Errorf("run: the program is missing, and only an image names one: %s has the files of a root alone", f.Root)
	}
	argv := slices.Concat(f.image.Config.Entrypoint, f.image.Config.Cmd)
	if len(argv) == 0 {
		return nil, fmt.Errorf("run: the program is missing: the image %s names none (Entrypoint, Cmd)", f.Root)
	}
	if strings.Contains(argv[0], "/") && !path.IsAbs(argv[0]) { // a file of the image, not one of this host's working directory
		argv[0] = path.Join("/", f.image.Config.WorkingDir, argv[0])
	}
	return []part{{ranks: f.Ranks, argv: argv}}, nil
}

// pathOf returns the value of PATH.
func pathOf(env []string) string {
	for _, entry := range env {
		if value, ok := strings.CutPrefix(entry, "PATH="); ok {
			return value
		}
	}
	return ""
}

// imageEnvironment adds the variables of an image to the environment of a job. A variable that the
// job has keeps its value. PATH is the exception: this host's names folders of this host, so the
// image's counts, unless the user has set one.
func imageEnvironment(env, ofImage, set []string) []string {
	has := func(list []string, name string) bool {
		return slices.ContainsFunc(list, func(entry string) bool { return strings.HasPrefix(entry, name+"=") })
	}
	for _, entry := range ofImage {
		name, _, ok := strings.Cut(entry, "=")
		if !ok || name == "" {
			continue
		}
		if name == "PATH" && !has(set, name) {
			env = slices.DeleteFunc(slices.Clone(env), func(old string) bool { return strings.HasPrefix(old, "PATH=") })
		}
		if !has(env, name) {
			env = append(env, entry)
		}
	}
	return env
}

// collect finds the files of the job. What they need stays until release is called.
func (f *Flags) collect(ctx context.Context, status *launch.Status, programs []string) (files *launch.Files, release func(), err error) {
	release = func() {}
	switch f.Root {
	case "":
		files, err = launch.CollectAll(programs, f.With)
		return files, release, err
	case rootHost:
		files, err = launch.CollectHost(programs, f.With)
		return files, release, err
	}
	root := launch.Root{Name: f.Root}
	if f.image != nil {
		root.Path = pathOf(f.image.Config.Env)
		if root.Tree, release, err = f.unpack(ctx, status); err != nil {
			return nil, nil, fmt.Errorf("run: --root %s: %w", f.Root, err)
		}
	}
	if files, err = launch.CollectRoot(root, programs, f.With); err != nil {
		release()
	}
	return files, release, err
}

// lendHost has a job with the root of the host share that with nodes that have a Linux of their
// own. Other nodes have it already.
func (f *Flags) lendHost(ctx context.Context, a *command.App, s *control.JobSpec, files *launch.Files) ([]launch.HostFolder, error) {
	if !s.HostRoot {
		return nil, nil
	}
	status, err := command.Ask[*control.MachineStatus](ctx, a, &control.Status{})
	if err != nil || status.Substrate != node.Virtual && status.Substrate != node.Metal {
		return nil, err
	}
	if f.Detach || f.Array != "" {
		return nil, errors.New("nodes with a Linux of their own get the files of this host from a margay run that waits for the end of its job: " +
			"name a folder or a tar file with a root (--root DIR), or leave out -d and --array")
	}
	s.HostRoot = false
	return files.LendHost()
}

// unpack unpacks an image into the cache.
func (f *Flags) unpack(ctx context.Context, status *launch.Status) (*image.Tree, func(), error) {
	dir, err := cache.Dir()
	if err != nil {
		return nil, nil, err
	}
	defer f.image.Close()
	progress := status.Progress("unpacking the image", f.image.Size())
	defer progress.Done()
	layers := &image.Cache{Dir: filepath.Join(dir, layersDir), Most: layersKept << 20}
	return f.image.Root(ctx, layers, int64(f.RootLimit)<<20, progress.Set)
}

// dir returns the working directory of the ranks.
func (f *Flags) dir() ([]byte, error) {
	dir, err := workingDir(f.Chdir)
	switch {
	case f.Chdir == "" && f.image != nil && f.image.Config.WorkingDir != "":
		return []byte(path.Clean("/" + f.image.Config.WorkingDir)), nil
	case f.Chdir != "" && f.Root != "" && f.Root != rootHost: // a folder of the root, which may not be here
		dir, err = filepath.Abs(f.Chdir)
	}
	if err != nil {
		return nil, fmt.Errorf("run: %w", err)
	}
	return []byte(dir), nil
}
