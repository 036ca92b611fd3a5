package list

import (
	"testing"

	"margay/nimble/engine"
	"margay/nimble/engine/enginetest"
	"margay/nimble/verify"
)

func TestFind(t *testing.T) {
	for _, entry := range Engines {
		e, err := Find(entry.Name)
		if _, absent := entry.Make(); (err == nil) != (absent == nil) {
			t.Errorf("%s: %v, made with %v", entry.Name, err, absent)
		}
		if err == nil && e.Name() != entry.Name {
			t.Errorf("%s is called %s", entry.Name, e.Name())
		}
	}
	if _, err := Find("warp"); err == nil {
		t.Error("found an engine that is not there")
	}
}

// The default is the first available engine that need not be chosen by name.
func TestAutomatic(t *testing.T) {
	want := ""
	for _, entry := range Engines {
		if _, err := entry.Make(); err == nil && !entry.Asked && want == "" {
			want = entry.Name
		}
	}
	e, err := Find("")
	if err != nil {
		t.Fatal(err)
	}
	p, err := verify.Verify(enginetest.Generate(nil), verify.Config{Services: enginetest.Services()})
	if err != nil {
		t.Fatal(err)
	}
	rig := enginetest.NewRig(t, e, p, 1, 0)
	if chosen, ok := rig.Code.(*engine.Chosen); !ok || chosen.Engine != want {
		t.Errorf("chosen %+v, want %s", rig.Code, want)
	}
}
