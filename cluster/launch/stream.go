package launch

import (
	"context"

	"margay/cluster/control"
)

// filePiece is the size of a piece of a job's files, in bytes. Large pieces mean few wake-ups on
// every node of the tree.
const filePiece = 256 << 10

// fileStream sends the data written to it as a job's files, as fast as the job's first node takes
// them.
type fileStream struct {
	context context.Context
	conn    connection
	window  *window
	job     uint32
	pending []byte
}

func newFileStream(ctx context.Context, conn connection, w *window, job uint32) *fileStream {
	return &fileStream{context: ctx, conn: conn, window: w, job: job}
}

func (f *fileStream) Write(p []byte) (int, error) {
	f.pending = append(f.pending, p...)
	for len(f.pending) >= filePiece {
		if err := f.send(f.pending[:filePiece]); err != nil {
			return 0, err
		}
		f.pending = append(f.pending[:0], f.pending[filePiece:]...)
	}
	return len(p), nil
}

// Close sends the rest and the end mark.
func (f *fileStream) Close() error {
	if err := f.send(f.pending); err != nil {
		return err
	}
	return f.conn.Send(&control.FileChunk{Job: f.job, Last: true})
}

func (f *fileStream) send(data []byte) error {
	if err := f.window.wait(f.context, len(data)); err != nil {
		return err
	}
	return f.conn.Send(&control.FileChunk{Job: f.job, Data: data})
}
