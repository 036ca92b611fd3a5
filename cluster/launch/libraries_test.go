package launch

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"margay/cluster/launch/ldso"
)

// A program linked with MPI or PMI is recognised by its direct and indirect libraries, or by a
// function in it.
func TestParallelPrograms(t *testing.T) {
	dir := t.TempDir()
	library := func(name, source string, args ...string) string {
		path := filepath.Join(dir, name)
		compile(t, source, path, append([]string{"-shared", "-fPIC", "-Wl,-soname," + name, "-Wl,-rpath," + dir}, args...)...)
		return path
	}
	mpi := library("libmpi.so.40", "int MPI_Init(int *c, char ***v) { return 0; }")
	pmix := library("libpmix.so.2", "int PMIx_Init(void *a, void *b) { return 0; }")
	integers := library("libmpir.so.23", "int MPI_Init(int *c, char ***v) { return 0; }")
	solver := library("libsolver.so", "int MPI_Init(int *c, char ***v); int solve(void) { return MPI_Init(0, 0); }", mpi)
	const (
		direct = "int MPI_Init(int *c, char ***v); int main(void) { return MPI_Init(0, 0); }"
		client = "int PMIx_Init(void *a, void *b); int main(void) { return PMIx_Init(0, 0); }"
		inside = "int MPI_Init_thread(void) { return 0; } int main(void) { return MPI_Init_thread(); }"
	)
	for _, test := range []struct {
		name, source, want string
		args               []string
	}{
		{"MPI", direct, "libmpi.so.40", []string{mpi}},
		{"PMIx", client, "libpmix.so.2", []string{pmix}},
		{"through another library", "int solve(void); int main(void) { return solve(); }", "libmpi.so.40", []string{solver}},
		{"static", inside, "MPI_Init_thread", []string{"-static"}},
		{"linked in", inside, "MPI_Init_thread", nil},
		{"another name of it", "int PMPI_Init(void) { return 0; } int MPI_Init(void) __attribute__((weak, alias(\"PMPI_Init\"))); int main(void) { return MPI_Init(); }", "MPI_Init", nil},
		{"a longer name", "int XMPI_Init(void) { return 0; } int main(void) { return XMPI_Init(); }", "", nil},
		{"PMI 2, static", "int PMI2_Init(void) { return 0; } int main(void) { return PMI2_Init(); }", "PMI2_Init", []string{"-static"}},
		{"stripped", inside, "", []string{"-static", "-s"}},
		{"large integers", direct, "", []string{integers}},
		{"neither", "int main(void) { return 0; }", "", nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			program := filepath.Join(t.TempDir(), "program")
			compile(t, test.source, program, append(test.args, "-Wl,-rpath,"+dir)...)
			f, err := Collect(program, nil)
			if err != nil || f.Parallel != test.want {
				t.Errorf("%q, %v", f.Parallel, err)
			}
			// What a script does is its own affair.
			f, err = Collect(write(t, 0o700, "#!/bin/sh\nexec "+program+"\n", dir, "script"), []string{program})
			if err != nil || f.Parallel != "" {
				t.Errorf("a script: %q, %v", f.Parallel, err)
			}
		})
	}
}

// Files named by --with take their libraries along: a library that an interpreter loads, and a
// program that a script runs.
func TestLibrariesOfWith(t *testing.T) {
	dir, hidden := t.TempDir(), t.TempDir()
	inner, module, tool := filepath.Join(hidden, "libinner.so"), filepath.Join(dir, "lib", "module.so"), filepath.Join(dir, "bin", "tool")
	gone, broken := filepath.Join(hidden, "libgone.so"), filepath.Join(dir, "lib", "broken.so")
	for _, folder := range []string{"lib", "bin"} {
		if err := os.Mkdir(filepath.Join(dir, folder), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	compile(t, "int inner(void) { return 7; }", inner, "-shared", "-fPIC", "-Wl,-soname,libinner.so")
	compile(t, "int gone(void) { return 7; }", gone, "-shared", "-fPIC", "-Wl,-soname,libgone.so")
	compile(t, "int inner(void); int module(void) { return inner(); }", module, "-shared", "-fPIC", inner, "-Wl,-rpath,"+hidden)
	compile(t, "int inner(void); int gone(void); int broken(void) { return inner() + gone(); }", broken, "-shared", "-fPIC", inner, gone, "-Wl,-rpath,"+hidden)
	compile(t, "#include <math.h>\nint main(int c, char **v) { return (int)cos(c); }", tool, "-fno-builtin", "-Wl,--no-as-needed", "-lm")
	if err := os.Remove(gone); err != nil {
		t.Fatal(err)
	}
	write(t, 0o600, "\x7fELF, but not really", dir, "lib", "text")
	script := write(t, 0o700, "#!/bin/sh\n", dir, "script")
	for with, want := range map[string]string{module: inner, filepath.Join(dir, "bin"): "/libm.so.6", broken: inner} {
		f, err := Collect(script, []string{with, filepath.Join(dir, "lib", "text")})
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(paths(f), func(path string) bool { return strings.HasSuffix(path, want) }) {
			t.Errorf("%s is not in %v", want, paths(f))
		}
	}
	static := filepath.Join(dir, "static")
	compile(t, "int main(void) { return 0; }", static, "-static")
	f, err := Collect(static, []string{tool})
	if list := strings.Join(paths(f), " "); err != nil || !strings.Contains(list, "/ld-linux") || !strings.Contains(list, "/libm.so.6") {
		t.Errorf("a program beside a static one: %v, %v", list, err)
	}
}

// Nothing that a file names is executed: no loader, be it of the program or of data, and no library
// that would audit the loader.
func TestNothingIsExecuted(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	ran := filepath.Join(dir, "ran")
	evil := write(t, 0o700, "#!/bin/sh\necho $* >>"+ran+"\n", dir, "evil")
	compile(t, `#include <fcntl.h>
		__attribute__((constructor)) static void begin(void) { open("`+ran+`", O_CREAT | O_WRONLY, 0600); }
		unsigned int la_version(unsigned int version) { return version; }`, filepath.Join(dir, "libaudit.so"), "-shared", "-fPIC", "-Wl,-soname,libaudit.so")
	static := filepath.Join(dir, "static")
	compile(t, "int main(void) { return 0; }", static, "-static")
	for name, args := range map[string][]string{
		"loader":          {"-Wl,--dynamic-linker=" + evil},
		"relative loader": {"-Wl,--dynamic-linker=evil"},
		"auditor":         {"-Wl,--audit=libaudit.so", "-Wl,-rpath," + dir},
	} {
		hostile := filepath.Join(dir, "hostile")
		compile(t, "int main(void) { return 0; }", hostile, args...)
		for how, collect := range map[string]func() (*Files, error){
			"a program": func() (*Files, error) { return Collect(hostile, nil) },
			"data":      func() (*Files, error) { return Collect(static, []string{hostile}) },
		} {
			f, err := collect()
			if _, err := os.Stat(ran); err == nil {
				t.Errorf("%s of %s was executed", name, how)
				os.Remove(ran)
			}
			if refused := name == "relative loader" && how == "a program"; (err != nil) != refused {
				t.Errorf("%s of %s: %v", name, how, err)
			}
			if err == nil && (!f.have[hostile] || f.have[evil]) {
				t.Errorf("%s of %s: %v", name, how, paths(f))
			}
		}
	}
}

// The index without which a loader does not find a library goes along: a node has none.
func TestIndexOfLibraries(t *testing.T) {
	dir := t.TempDir()
	loader, index, library := write(t, 0o700, "", dir, "ld.so"), write(t, 0o600, "", dir, "ld.so.cache"), write(t, 0o600, "", dir, "libone.so")
	f := &Files{have: make(map[string]bool), most: 3}
	if err := f.addNeeds(ldso.Needs{Loader: loader, Libraries: []string{library}, Index: index}); err != nil {
		t.Fatal(err)
	}
	if want := []string{loader, index, library}; !slices.Equal(paths(f), want) {
		t.Errorf("%q, not %q", paths(f), want)
	}
}

// A library that a program finds by $ORIGIN/.. goes along once, also when its folder does.
func TestLibraryBesideItsProgram(t *testing.T) {
	dir := t.TempDir()
	library, program := filepath.Join(dir, "lib", "libone.so"), filepath.Join(dir, "bin", "program")
	for _, path := range []string{library, program} {
		if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	compile(t, "", library, "-shared", "-fPIC", "-Wl,-soname,libone.so")
	compile(t, "int main(void) { return 0; }", program, "-Wl,--no-as-needed", library, "-Wl,-rpath,$ORIGIN/../lib")
	f, err := Collect(program, []string{filepath.Join(dir, "lib")})
	if err != nil {
		t.Fatal(err)
	}
	names := make(map[string]bool)
	for _, path := range paths(f) {
		if name := filepath.Clean(path); names[name] {
			t.Errorf("%s is there twice: %v", name, paths(f))
		}
		names[filepath.Clean(path)] = true
	}
	if !names[library] {
		t.Errorf("%s is not in %v", library, paths(f))
	}
}
