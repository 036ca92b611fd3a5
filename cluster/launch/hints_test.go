package launch

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// After a program has failed, the missing files of its interpreter are named.
func TestHint(t *testing.T) {
	prefix := t.TempDir()
	interpreter := func(name string) string {
		path := filepath.Join(prefix, "bin", name)
		write(t, 0o700, "", path)
		compile(t, "int main(void) { return 1; }", path, "-static")
		return path
	}
	python, perl, bash := interpreter("python3.11"), interpreter("perl5.36.0"), interpreter("bash")
	library, base, shared := filepath.Join(prefix, "lib/python3.11"), filepath.Join(prefix, "lib/x86_64/perl-base"), filepath.Join(prefix, "share/perl/5.36")
	for _, folder := range []string{library, base, shared} {
		write(t, 0o600, "", folder, "file")
	}
	script := write(t, 0o700, "#!"+python+"\n", prefix, "script.py")
	wrapper := write(t, 0o700, "#!"+bash+"\n", prefix, "shims", "python3")
	const leftBehind = "files that arguments name are not copied automatically:"
	for _, test := range []struct {
		name, program string
		with          []string
		code          int
		want          string
		args          []string
	}{
		{"python", script, nil, 1, "python3.11 went along without its library: --with " + library + ", or --root host", nil},
		{"a debugger with python inside", interpreter("gdb"), nil, 1, "gdb went along without its library: --with " + library + ", or --root host", nil},
		{"python with its library", script, []string{library}, 1, "", nil},
		{"perl", perl, nil, 2, "perl5.36.0 went along without its library: --with " + base + " --with " + shared + ", or --root host", nil},
		{"perl, a part", perl, []string{base}, 2, "perl5.36.0 went along without its library: --with " + shared + ", or --root host", nil},
		{"shell", bash, nil, 127, `bash finds no other programs on a node than those that go along: --with "$(command -v NAME)" takes one, --root host has all of this host`, nil},
		{"script of a shell", wrapper, nil, 127, `python3 is a script for bash, which finds no other programs on a node than those that go along: --with "$(command -v NAME)" takes one, --root host has all of this host`, nil},
		{"shell that fails otherwise", bash, nil, 1, "", nil},
		{"a program", interpreter("app"), nil, 127, "", nil},
		{"shell without its script", bash, nil, 127, leftBehind + " --with " + script, []string{script}},
		{"shell with its script", bash, []string{script}, 126, "", []string{script}},
		{"python without its script", python, nil, 2, "python3.11 went along without its library: --with " + library + ", or --root host; " + leftBehind +
			" --with " + script, []string{"-u", script, script, shared, "/etc/passwd", "/proc/version", "none"}},
		{"a program that does not end", interpreter("app"), nil, 124, "", []string{script}},
		{"a program that a signal ended", interpreter("app"), nil, 130, "", []string{script}},
	} {
		f, err := Collect(test.program, test.with)
		if err != nil {
			t.Fatal(err)
		}
		if got := f.Hint(test.code, test.args); got != test.want {
			t.Errorf("%s: %q", test.name, got)
		}
	}
}

// After a job has reached its time limit, a library that may have hung is named.
func TestHintOfLimit(t *testing.T) {
	for version, hangs := range map[string]bool{"12.1.8": false, "12.2.2": true, "12.3.1": true, "12.4.1": false} {
		folder := t.TempDir()
		library, program := filepath.Join(folder, "libmpich.so.12"), filepath.Join(folder, "app")
		compile(t, "int MPI_Init(void) { return 0; }", library+"."+strings.TrimPrefix(version, "12."), "-shared", "-Wl,-soname,libmpich.so.12")
		if err := os.Symlink("libmpich.so."+version, library); err != nil {
			t.Fatal(err)
		}
		compile(t, "int MPI_Init(void); int main(void) { return MPI_Init(); }", program, library, "-Wl,-rpath,"+folder)
		f, err := Collect(program, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := f.Hint(124, nil); strings.Contains(got, "MPICH 4.2 does not") != hangs || !hangs && got != "" {
			t.Errorf("%s: %q", version, got)
		}
		if got := f.Hint(1, nil); got != "" {
			t.Errorf("%s, another failure: %q", version, got)
		}
	}
}
