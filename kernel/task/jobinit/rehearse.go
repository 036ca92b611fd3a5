package jobinit

import (
	"archive/tar"
	"bytes"
	"errors"

	"margay/kernel/abi/archive"
	"margay/kernel/abi/id"
	"margay/kernel/link"
	"margay/kernel/task"
)

// rehearse makes what Go makes when something is done for the first time - tables of encoding/json,
// memory, pages of the program - so that the launch of a job does not wait for that. It has no
// other effect.
func rehearse() error {
	var errs []error
	for _, sent := range []struct{ example, to any }{
		{task.CreateBody{Spec: task.Spec{Ranks: []task.Rank{{Cores: []id.CPU{0}, Env: []string{""}}}, Words: []byte("{}")}}, new(task.CreateBody)},
		{task.ContentsBody{Digests: []archive.Digest{{}}}, new(task.ContentsBody)},
		{task.Record{Status: task.Status{Time: 1, Usage: task.Usage{User: 1}}}, new(task.Record)},
		{task.AckBody{}, new(task.AckBody)},
		{task.ProcessBody{}, new(task.ProcessBody)},
		{task.InputBody{}, new(task.InputBody)},
		{task.Unkept{}, new(task.Unkept)},
	} {
		errs = append(errs, link.New("", sent.example).Decode(sent.to))
	}
	var packed bytes.Buffer
	out := tar.NewWriter(&packed)
	h := &tar.Header{Name: "name", PAXRecords: map[string]string{archive.Code: "1"}, Format: tar.FormatPAX}
	errs = append(errs, out.WriteHeader(h), out.Close())
	_, err := tar.NewReader(&packed).Next()
	return errors.Join(append(errs, err)...)
}
