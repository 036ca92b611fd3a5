package procname

import (
	"os"
	"testing"
)

func TestSet(t *testing.T) {
	for name, want := range map[string]string{"margay-test": "margay-test\n", "a name that is too long": "a name that is \n"} {
		if err := Set(name); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile("/proc/self/comm"); err != nil || string(got) != want {
			t.Errorf("%q: %q, %v", name, got, err)
		}
	}
}
