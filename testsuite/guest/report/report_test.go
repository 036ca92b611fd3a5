package report

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"margay/qemu/console"
)

// Events pass through a console that cuts lines and replaces characters.
func TestEventsPassTheConsole(t *testing.T) {
	log, err := console.New(console.Config{})
	if err != nil {
		t.Fatal(err)
	}
	w := NewWriter(log)
	data := make([]byte, 10*maxPiece+1)
	for i := range data {
		data[i] = byte(i)
	}
	if err := errors.Join(
		w.Write(Event{Kind: Up}),
		w.Write(Event{Kind: Output, Run: 1 << 20, Data: data}),
		w.Write(Event{Kind: Exit, Run: 1, Text: "status 1"}),
	); err != nil {
		t.Fatal(err)
	}
	log.Write([]byte("[   12.345678] something of the kernel's\n"))
	if err := w.Write(Event{Kind: Done}); err != nil {
		t.Fatal(err)
	}
	log.Close()
	var r Reader
	var kinds []string
	var got []byte
	for _, line := range log.Tail(console.KeepLines) {
		e, err := r.Read(line)
		if err != nil {
			t.Fatal(err)
		}
		if e == nil {
			continue
		}
		got = append(got, e.Data...)
		if len(kinds) == 0 || kinds[len(kinds)-1] != string(e.Kind) {
			kinds = append(kinds, string(e.Kind))
		}
		if e.Kind == Exit && (e.Run != 1 || e.Text != "status 1") {
			t.Errorf("exit %+v", e)
		}
	}
	if !bytes.Equal(got, data) || strings.Join(kinds, " ") != "up output exit done" {
		t.Errorf("%d of %d bytes, events %v", len(got), len(data), kinds)
	}
}

func TestDamageIsNoticed(t *testing.T) {
	for name, lines := range map[string][]string{
		"first one lost": {mark + `{"Seq":2,"Kind":"done"}`},
		"one lost":       {mark + `{"Seq":1,"Kind":"up"}`, mark + `{"Seq":3,"Kind":"done"}`},
		"told twice":     {mark + `{"Seq":1,"Kind":"up"}`, mark + `{"Seq":1,"Kind":"up"}`},
		"broken line":    {mark + `{"Seq":1,"Ki`, `nd":"up"}`},
	} {
		t.Run(name, func(t *testing.T) {
			var r Reader
			var err error
			for _, line := range lines {
				if err == nil {
					_, err = r.Read(line)
				}
			}
			if !errors.Is(err, ErrDamaged) {
				t.Errorf("lines %q: %v", lines, err)
			}
		})
	}
}

func FuzzRead(f *testing.F) {
	f.Add(mark + `{"Seq":1,"Kind":"output","Data":"aGVsbG8="}`)
	f.Fuzz(func(t *testing.T, line string) {
		var r Reader
		if e, err := r.Read(line); e != nil && err != nil {
			t.Error(e, err)
		}
	})
}
