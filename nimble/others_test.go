package nimble_test

import (
	"errors"
	"fmt"
	"testing"

	"margay/nimble"
	"margay/nimble/engine"
	"margay/nimble/engine/list"
	"margay/nimble/service"
	"margay/nimble/state"
)

// TestStateOfOthers gives an extension the address of another one's map, which
// is in the same process: it is stopped with the same report on every engine,
// and the map stays as it is.
func TestStateOfOthers(t *testing.T) {
	keeper := assemble(t, "lddw_map r1, 0", "exit")
	keeper.Maps = []state.Spec{{Name: "secret", ValueSize: 64, Entries: 512, Contents: []byte{42}}}
	secret := insert(t, keeper, nimble.Options{}).Map("secret")
	addr := secret.Region().Base
	table, err := service.NewTable(service.Service{
		Number: 1, Name: "clear", Args: []service.Kind{service.Writable, service.Length},
		Func: func(c *service.Call) (uint64, error) { clear(c.Bytes(0)); return 0, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		access []string
		kind   engine.Kind
		pc     int
		fuel   uint64
	}{
		{[]string{"ldxb r0, [r1]", "exit"}, engine.Memory, 2, 97},
		{[]string{"stxdw [r1], r2", "exit"}, engine.Memory, 2, 97},
		{[]string{"atomic_fetch_add [r1], r2", "exit"}, engine.Memory, 2, 97},
		{[]string{"mov r2, 8", "call 1", "exit"}, engine.Argument, 3, 96},
	} {
		for _, entry := range list.Engines {
			e, err := entry.Make()
			if entry.Sparing || err != nil {
				continue // not here, or the kernel, which has no such address
			}
			x, err := nimble.Insert(assemble(t, append([]string{fmt.Sprintf("lddw r1, %#x", addr)}, c.access...)...),
				nimble.Options{Engine: e, Services: table, Limits: nimble.Limits{Fuel: 100}})
			if err != nil {
				t.Fatal(err)
			}
			_, err = x.Run(&nimble.Event{})
			f, ok := errors.AsType[*engine.Fault](err)
			if !ok || f.Kind != c.kind || f.PC != c.pc || f.Addr != addr || f.Fuel != c.fuel || f.Region == "secret" {
				t.Errorf("%s: %q: %v", entry.Name, c.access, err)
			}
			if err := x.Close(); err != nil {
				t.Error(err)
			}
		}
	}
	if value, _ := secret.Value(0, 0); value[0] != 42 {
		t.Errorf("the map of the other one holds %x", value)
	}
}
