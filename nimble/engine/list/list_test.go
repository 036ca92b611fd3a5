package list

import "testing"

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
	if e, err := Find(""); err != nil || e.Name() != "portable" {
		t.Errorf("the default is %v, %v", e, err)
	}
	if _, err := Find("warp"); err == nil {
		t.Error("found an engine that is not there")
	}
}
