package ldso

import (
	"debug/elf"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"margay/internal/check"
)

// systemLoader is the loader of this system, which the tests ask about files that they have made
// and files of the distribution.
func systemLoader(t *testing.T) string {
	t.Helper()
	shell, err := readObject("/bin/sh", elf.EM_NONE, new(int))
	if err != nil || !strings.HasPrefix(filepath.Base(shell.interpreter), "ld-linux") {
		t.Skip("this test compares with the loader of the GNU C library, which this system does not have")
	}
	return shell.interpreter
}

// ask returns what the loader says that a program loads, as paths, and the first library that it
// lacks. The environment counts.
func ask(t *testing.T, loader, program string) (libraries []string, missing string) {
	t.Helper()
	var text strings.Builder
	c := exec.Command(loader, "--list", program)
	c.Stderr = &text
	out, err := c.Output()
	if err != nil {
		_, rest, _ := strings.Cut(text.String(), "error while loading shared libraries: ")
		missing, _, found := strings.Cut(rest, ": cannot open shared object file")
		if !found {
			t.Fatalf("%s --list %s: %v\n%s", loader, program, err, text.String())
		}
		return nil, missing
	}
	for line := range strings.Lines(string(out)) {
		line, _, _ = strings.Cut(strings.TrimSpace(line), " (")
		_, path, found := strings.Cut(line, " => ")
		if !found {
			path = line
		}
		if strings.Contains(path, "/") && path != loader {
			libraries = append(libraries, path)
		}
	}
	return libraries, ""
}

// agree demands that a search finds the same libraries as the loader, in the same order, or that
// both lack the same.
func agree(t *testing.T, s *Search, loader, program string) Needs {
	t.Helper()
	t.Setenv("LD_LIBRARY_PATH", s.LibraryPath)
	t.Setenv("LD_PRELOAD", s.Preload)
	want, missing := ask(t, loader, program)
	needs, err := s.Needs(program, "")
	if err != nil {
		t.Errorf("%s: %v", program, err)
		return needs
	}
	if missing != "" {
		if len(needs.Missing) == 0 || needs.Missing[0].Library != missing {
			t.Errorf("%s: the loader lacks %s, the search %v", program, missing, needs.Missing)
		}
		return needs
	}
	if len(needs.Missing) > 0 || !slices.Equal(needs.Libraries, want) || needs.Loader != loader {
		t.Errorf("%s: loader %s, missing %v, libraries %q; the loader %s has %q", program, needs.Loader, needs.Missing, needs.Libraries, loader, want)
	}
	return needs
}

// Programs of the distribution have the libraries that its loader finds for them: a hundred at
// random, and all in soak.
func TestSystemPrograms(t *testing.T) {
	loader := systemLoader(t)
	entries, err := os.ReadDir("/usr/bin")
	if err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(check.Seed(t), 0))
	random.Shuffle(len(entries), func(i, j int) { entries[i], entries[j] = entries[j], entries[i] })
	compared, most := 0, check.Rounds(100, len(entries))
	search := new(Search)
	for _, entry := range entries {
		path := filepath.Join("/usr/bin", entry.Name())
		if o, err := readObject(path, elf.EM_NONE, new(int)); err != nil || o.interpreter != loader {
			continue
		}
		agree(t, search, loader, path)
		if compared++; compared == most {
			break
		}
	}
	if compared < 20 {
		t.Errorf("only %d programs were compared", compared)
	}
	t.Logf("%d programs", compared)
}

// built is a folder with programs and libraries.
type built struct {
	*testing.T
	dir string
}

func build(t *testing.T) built {
	t.Helper()
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip("this test needs gcc")
	}
	return built{t, t.TempDir()}
}

// path returns the path of a file in the folder, whose own folder it makes.
func (b built) path(name string) string {
	path := filepath.Join(b.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		b.Fatal(err)
	}
	return path
}

// gcc makes a file of C source. In arguments, DIR is the folder.
func (b built) gcc(source, name string, args ...string) string {
	b.Helper()
	c, out := b.path("x.c"), b.path(name)
	if err := os.WriteFile(c, []byte(source), 0o600); err != nil {
		b.Fatal(err)
	}
	for i, arg := range args {
		args[i] = strings.ReplaceAll(arg, "DIR", b.dir)
	}
	if text, err := exec.Command("gcc", append([]string{"-o", out, c, "-Wl,--no-as-needed"}, args...)...).CombinedOutput(); err != nil {
		b.Fatalf("gcc: %v\n%s", err, text)
	}
	return out
}

// library makes a library.
func (b built) library(name string, args ...string) string {
	b.Helper()
	return b.gcc("", name, append([]string{"-shared", "-fPIC", "-Wl,-soname," + filepath.Base(name)}, args...)...)
}

// program makes a program that is never run.
func (b built) program(args ...string) string {
	b.Helper()
	return b.gcc("int main(void) { return 0; }", "bin/program", args...)
}

const (
	oldTags = "-Wl,--disable-new-dtags" // RPATH
	newTags = "-Wl,--enable-new-dtags"  // RUNPATH
)

// Each rule of the search finds what the loader finds.
func TestRules(t *testing.T) {
	loader := systemLoader(t)
	for _, test := range []struct {
		name string
		make func(b built, s *Search) string
		want []string // libraries of the folder; the loader is asked as well
	}{
		{"RPATH reaches the libraries of libraries", func(b built, s *Search) string {
			inner := b.library("lib/libinner.so")
			outer := b.library("lib/libouter.so", inner)
			return b.program(outer, oldTags, "-Wl,-rpath,DIR/lib")
		}, []string{"lib/libouter.so", "lib/libinner.so"}},
		{"RUNPATH does not", func(b built, s *Search) string {
			inner := b.library("lib/libinner.so")
			outer := b.library("lib/libouter.so", inner)
			return b.program(outer, newTags, "-Wl,-rpath,DIR/lib", "-Wl,-rpath-link,DIR/lib")
		}, nil},
		{"RUNPATH of a library hides the RPATH of its program", func(b built, s *Search) string {
			inner := b.library("lib/libinner.so")
			outer := b.library("lib/libouter.so", inner, newTags, "-Wl,-rpath,/nowhere")
			return b.program(outer, oldTags, "-Wl,-rpath,DIR/lib")
		}, nil},
		{"RPATH before the environment", func(b built, s *Search) string {
			one := b.library("one/libone.so")
			b.library("two/libone.so")
			s.LibraryPath = b.dir + "/two"
			return b.program(one, oldTags, "-Wl,-rpath,DIR/one")
		}, []string{"one/libone.so"}},
		{"the environment before RUNPATH", func(b built, s *Search) string {
			one := b.library("one/libone.so")
			b.library("two/libone.so")
			s.LibraryPath = "/nowhere;" + b.dir + "/two"
			return b.program(one, newTags, "-Wl,-rpath,DIR/one")
		}, []string{"two/libone.so"}},
		{"$ORIGIN of the program and of a library", func(b built, s *Search) string {
			inner := b.library("lib/deep/libinner.so")
			outer := b.library("lib/libouter.so", inner, newTags, "-Wl,-rpath,$ORIGIN/deep")
			return b.program(outer, newTags, "-Wl,-rpath,${ORIGIN}/../lib", "-Wl,-rpath-link,DIR/lib/deep")
		}, []string{"bin/../lib/libouter.so", "bin/../lib/deep/libinner.so"}},
		{"a path for a name", func(b built, s *Search) string {
			return b.program(b.gcc("", "lib/libpath.so", "-shared", "-fPIC"))
		}, []string{"lib/libpath.so"}},
		{"libraries in a circle", func(b built, s *Search) string {
			first := b.library("lib/libfirst.so")
			second := b.library("lib/libsecond.so", first)
			b.library("lib/libfirst.so", second, "-Wl,-rpath,DIR/lib")
			return b.program(first, oldTags, "-Wl,-rpath,DIR/lib")
		}, []string{"lib/libfirst.so", "lib/libsecond.so"}},
		{"breadth first", func(b built, s *Search) string {
			leaf := b.library("lib/libleaf.so")
			left := b.library("lib/libleft.so", leaf)
			right := b.library("lib/libright.so")
			return b.program(left, right, oldTags, "-Wl,-rpath,DIR/lib")
		}, []string{"lib/libleft.so", "lib/libright.so", "lib/libleaf.so"}},
		{"files of other machines are passed over", func(b built, s *Search) string {
			one := b.library("two/libone.so")
			data, err := os.ReadFile(one)
			if err != nil {
				b.Fatal(err)
			}
			for folder, change := range map[string]int{"class": 4, "machine": 18} {
				other := slices.Clone(data)
				other[change] = 1 // 32 bits; WE 32100
				if err := os.WriteFile(b.path(folder+"/libone.so"), other, 0o600); err != nil {
					b.Fatal(err)
				}
			}
			return b.program(one, "-Wl,-rpath,DIR/class:DIR/machine:DIR/two")
		}, []string{"two/libone.so"}},
		{"preloaded libraries come first and those that are missing do not matter", func(b built, s *Search) string {
			inner := b.library("lib/libinner.so")
			pre := b.library("pre/libpre.so", inner, "-Wl,-rpath,DIR/lib")
			s.Preload = pre + ":/nowhere/libnone.so libone.so"
			return b.program(b.library("lib/libone.so"), oldTags, "-Wl,-rpath,DIR/lib")
		}, []string{"pre/libpre.so", "lib/libone.so", "lib/libinner.so"}},
		{"a preloaded library that lacks another", func(b built, s *Search) string {
			inner := b.library("lib/libinner.so")
			s.Preload = b.library("pre/libpre.so", inner)
			return b.program()
		}, nil},
		{"no default folders", func(b built, s *Search) string {
			return b.program("-Wl,-z,nodefaultlib")
		}, nil},
		{"a missing library", func(b built, s *Search) string {
			one := b.library("lib/libone.so")
			program := b.program(one, "-Wl,-rpath,DIR/lib")
			if err := os.Remove(one); err != nil {
				b.Fatal(err)
			}
			return program
		}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			b, s := build(t), new(Search)
			needs := agree(t, s, loader, test.make(b, s))
			var own []string
			for _, path := range needs.Libraries {
				if name, ok := strings.CutPrefix(path, b.dir+"/"); ok {
					own = append(own, name)
				}
			}
			if test.want == nil && len(needs.Missing) == 0 || test.want != nil && !slices.Equal(own, test.want) {
				t.Errorf("%q, missing %v", own, needs.Missing)
			}
		})
	}
}

// Folders without a beginning are searched from the working directory, and an empty one is it.
func TestWorkingDirectory(t *testing.T) {
	loader, b := systemLoader(t), build(t)
	one := b.library("lib/libone.so")
	for folder, dir := range map[string]string{"lib": "", "/nowhere::": "lib", "../lib/.": "bin"} {
		program := b.program(one, "-Wl,-rpath,"+folder)
		t.Chdir(filepath.Join(b.dir, dir))
		if libraries, missing := ask(t, loader, program); missing != "" {
			t.Errorf("%s from %q: the loader has %q and lacks %s", folder, dir, libraries, missing)
		}
		needs, err := new(Search).Needs(program, "")
		if err != nil || len(needs.Libraries) != 2 || filepath.Clean(needs.Libraries[0]) != one {
			t.Errorf("%s from %q: %+v, %v", folder, dir, needs, err)
		}
	}
}

// Without a working directory a search does without it, and says so of a library that it has not
// found.
func TestNoWorkingDirectory(t *testing.T) {
	loader, b := systemLoader(t), build(t)
	one := b.library("lib/libone.so")
	found := b.program(one, "-Wl,-rpath,"+filepath.Dir(one))
	if err := os.Rename(found, found+" that finds"); err != nil {
		t.Fatal(err)
	}
	found, lost := found+" that finds", b.program(one, "-Wl,-rpath,lib")
	gone := filepath.Join(b.dir, "gone")
	if err := os.Mkdir(gone, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Chdir(gone)
	if err := os.Remove(gone); err != nil {
		t.Fatal(err)
	}
	if libraries, missing := ask(t, loader, found); missing != "" {
		t.Errorf("the loader has %q and lacks %s", libraries, missing)
	}
	if needs, err := new(Search).Needs(found, ""); err != nil || len(needs.Missing) != 0 {
		t.Errorf("%+v, %v", needs, err)
	}
	needs, err := new(Search).Needs(lost, "")
	if err != nil || len(needs.Missing) != 1 || !strings.Contains(needs.Missing[0].Error(), "the current one, which cannot be used (getwd: no such file or directory)") {
		t.Errorf("%+v, %v", needs, err)
	}
}
