package margay_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"margay/lib/margay"
)

// round is what a round of started accesses uses.
type round struct {
	data, got      []byte
	added, swapped uint64
}

// start starts a put, two atomic accesses and a get of this rank's part of a rank's window.
func (r *round) start(job *margay.Job, i int) (requests []*margay.Request, err error) {
	to, own := i%job.Size(), job.Rank()*part
	r.data, r.got = make([]byte, part), make([]byte, part)
	for k := range r.data {
		r.data[k] = byte(i + k*3)
	}
	word := binary.LittleEndian.Uint64(r.data[8:])
	for _, start := range []func() (*margay.Request, error){
		func() (*margay.Request, error) { return job.StartPut(to, 0, own, r.data) },
		func() (*margay.Request, error) { return job.StartFetchAdd(to, 0, own+8, 5, &r.added) },
		func() (*margay.Request, error) {
			return job.StartCompareSwap(to, 0, own+8, word+5, word+7, &r.swapped)
		},
		func() (*margay.Request, error) { return job.StartGet(to, 0, own, r.got) },
	} {
		request, err := start()
		if err != nil {
			return nil, err
		}
		requests = append(requests, request)
	}
	return requests, nil
}

// check checks the results.
func (r *round) check() error {
	word := binary.LittleEndian.Uint64(r.data[8:])
	if r.added != word || r.swapped != word+5 {
		return fmt.Errorf("there was %x and %x", r.added, r.swapped)
	}
	binary.LittleEndian.PutUint64(r.data[8:], word+7)
	return same(r.got, r.data)
}

// started starts many accesses before it waits for any.
func (a *accesses) started() error {
	rounds := make([]round, 16)
	var requests []*margay.Request
	for i := range rounds {
		some, err := rounds[i].start(a.job, i)
		if err != nil {
			return err
		}
		requests = append(requests, some...)
	}
	for half := len(requests) / 2; half > 0; half-- {
		i, err := margay.WaitAny(a.ctx, requests[:half]...)
		if err != nil {
			return err
		}
		requests = slices.Delete(requests, i, i+1)
	}
	for done := false; !done; {
		var err error
		if done, err = requests[0].Test(); err != nil {
			return err
		}
	}
	if err := margay.WaitAll(a.ctx, requests...); err != nil {
		return err
	}
	if i, err := margay.WaitAny(a.ctx); i != -1 || err != nil {
		return fmt.Errorf("none of the requests is complete: %d, %w", i, err)
	}
	for i := range rounds {
		if err := rounds[i].check(); err != nil {
			return err
		}
	}
	return nil
}

// startedEvent counts an event with a started put, and checks errors of requests.
func (a *accesses) startedEvent() error {
	window, err := a.job.Window(0, a.words+24)
	if err != nil {
		return err
	}
	right, at := (a.job.Rank()+1)%a.job.Size(), a.job.Size()*part
	data := bytes.Repeat([]byte{99}, passed)
	request, err := a.job.StartPutEvent(right, 0, at, data, a.words)
	if err != nil {
		return err
	}
	if err := a.job.EventWait(a.ctx, 0, a.words, 11); err != nil {
		return err
	}
	if err := same(window[at:][:passed], data); err != nil {
		return err
	}
	if err := request.Wait(a.ctx); err != nil {
		return err
	}
	if request, err = a.job.StartPut(right, 0, a.words+23, make([]byte, 2)); err == nil {
		err = request.Wait(a.ctx)
	}
	if !errors.Is(err, margay.ErrWindow) {
		return fmt.Errorf("a started put beyond a window: %w", err)
	}
	if request, err = a.job.StartGet(right, 9, 0, make([]byte, 1)); err == nil {
		err = request.Wait(a.ctx)
	}
	if !errors.Is(err, margay.ErrWindow) {
		return fmt.Errorf("a started get from no window: %w", err)
	}
	return a.completed(right, at, data)
}

// completed starts a put that a barrier completes.
func (a *accesses) completed(right, at int, data []byte) error {
	request, err := a.job.StartPut(right, 0, at, data)
	if err != nil {
		return err
	}
	if err := a.job.Barrier(a.ctx); err != nil {
		return err
	}
	if err := a.job.Quiet(a.ctx); err != nil {
		return err
	}
	if done, err := request.Test(); !done || err != nil {
		return fmt.Errorf("a request is not complete after Quiet: %w", err)
	}
	return nil
}

// pending waits for requests without an answer.
func pending(ctx context.Context, job *margay.Job) error {
	got, value := make([]byte, 8), make([]byte, 8)
	get, err := job.StartGet(0, 0, 16, got)
	if err != nil {
		return err
	}
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	if err := get.Wait(short); !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("a wait without an answer: %w", err)
	}
	if done, err := get.Test(); done || err != nil {
		return fmt.Errorf("a request without an answer is complete: %w", err)
	}
	var requests []*margay.Request
	for {
		put, err := job.StartPut(0, 0, 0, value)
		if errors.Is(err, margay.ErrRequests) {
			fmt.Println(err)
			break
		}
		if err != nil {
			return err
		}
		requests = append(requests, put)
	}
	get.Abandon()
	put, err := job.StartPut(0, 0, 0, value)
	if err != nil {
		return err
	}
	fmt.Println("abandoned")
	if err := margay.WaitAll(ctx, append(requests, put)...); err != nil {
		return err
	}
	if !bytes.Equal(got, make([]byte, 8)) {
		return errors.New("an answer came to memory of an abandoned request")
	}
	return job.Finalize(ctx)
}
