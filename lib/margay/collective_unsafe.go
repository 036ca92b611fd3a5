package margay

import (
	"context"
	"fmt"
	"reflect"
	"unsafe"

	"margay/kernel/abi/wire"
	"margay/lib/collective"
)

// Number is an element that reductions know. A C program has the same types.
type Number interface {
	int32 | int64 | uint32 | uint64 | float32 | float64
}

// Op is what a reduction does with elements.
type Op uint8

// The operations. And, Or and Xor work bit by bit, on integers only. Sums of integers wrap. Min and
// Max compare by <, so a result with NaN depends on its place.
const (
	Sum = Op(wire.OpSum)
	Min = Op(wire.OpMin)
	Max = Op(wire.OpMax)
	And = Op(wire.OpAnd)
	Or  = Op(wire.OpOr)
	Xor = Op(wire.OpXor)
)

// Collective operations
//
// They are made by Ranks: all of a job, or a group. Every one of these must make the same calls,
// in the same order, with the same root and length; root is a place in the group. Elements are
// copied as their bytes and must hold no pointers. A call that waits handles messages. A rank
// returns when its own part is done: only after an AllReduce, an AllGather, an AllToAll or a
// barrier is it certain that every rank has made the call. A handler, and the function of a
// reduction, must not make a call. Goroutines must agree on an order for each group, as ranks
// must.
//
// The functions that begin with Start start a call and return its request at once. Until it is
// complete, its slices belong to the library. Every function of this package that polls or waits
// advances the calls that were started. Calls of one group are carried out one after the other,
// in the order of starting, with or without a request; calls of different groups do not wait for
// each other. Test, Wait, WaitAll and WaitAny work as for any request.
//
// An error, the end of ctx, or an abandoned request ends the collective operations of the group
// for this rank: all calls under way and all later ones return the same error. A wait for a
// request that its ctx ends does not. If a rank ends without making a call, the job ends.
//
// Ranks whose calls differ, in the operation, the root, the length, the type or what a reduction
// does with it, fail with ErrMismatch, which names both: at once when data of one reach the other,
// else when they have awaited each other for 250 ms, or, if the second one comes later, for the
// time that the first has waited. So do the ranks that wait for one of them. A rank that awaits
// nothing, such as the root of a broadcast, succeeds, and its next call of the group that awaits
// another rank fails. Job.Barrier is not one of these calls: another goroutine of the rank may
// make the call. A rank in it and one in a collective call wait for each other, and when ctx ends,
// the error of each names the other, if both have waited for 500 ms by then, and one not much
// longer than the other. Two functions of the application, and two types of elements of one size
// in Broadcast and the like, make no difference.

// ErrMismatch reports that ranks make different collective calls.
var ErrMismatch = collective.ErrMismatch

// Broadcast copies data of root to data of all ranks.
func Broadcast[T any](ctx context.Context, on Ranks, root int, data []T) error {
	return do(ctx, on, toBroadcast(root, data))
}

// StartBroadcast starts a Broadcast.
func StartBroadcast[T any](on Ranks, root int, data []T) (*Request, error) {
	return begin(on, toBroadcast(root, data))
}

// Reduce combines each element of in with the same element of the other ranks, in out of root, in
// the order root, root+1 and so on, wrapping behind the last rank. The way in which they are
// associated depends on the number of ranks only, so equal values give an equal result each time.
// out has the length of in, and may be in; other ranks may pass nil.
func Reduce[T Number](ctx context.Context, on Ranks, root int, in, out []T, op Op) error {
	return do(ctx, on, toReduce(wire.CallReduce, on, root, in, out, op))
}

// StartReduce starts a Reduce.
func StartReduce[T Number](on Ranks, root int, in, out []T, op Op) (*Request, error) {
	return begin(on, toReduce(wire.CallReduce, on, root, in, out, op))
}

// ReduceFunc is Reduce with a function that combines from into into, which have one length. The
// function must be associative, and must not use the job.
func ReduceFunc[T any](ctx context.Context, on Ranks, root int, in, out []T, f func(into, from []T)) error {
	return do(ctx, on, toReduceBy(wire.CallReduce, on, root, in, out, f))
}

// StartReduceFunc starts a ReduceFunc.
func StartReduceFunc[T any](on Ranks, root int, in, out []T, f func(into, from []T)) (*Request, error) {
	return begin(on, toReduceBy(wire.CallReduce, on, root, in, out, f))
}

// AllReduce is Reduce with root 0 whose result all ranks get: the same bits.
func AllReduce[T Number](ctx context.Context, on Ranks, in, out []T, op Op) error {
	return do(ctx, on, toReduce(wire.CallAllReduce, on, 0, in, out, op))
}

// StartAllReduce starts an AllReduce.
func StartAllReduce[T Number](on Ranks, in, out []T, op Op) (*Request, error) {
	return begin(on, toReduce(wire.CallAllReduce, on, 0, in, out, op))
}

// AllReduceFunc is AllReduce with a function, as ReduceFunc.
func AllReduceFunc[T any](ctx context.Context, on Ranks, in, out []T, f func(into, from []T)) error {
	return do(ctx, on, toReduceBy(wire.CallAllReduce, on, 0, in, out, f))
}

// StartAllReduceFunc starts an AllReduceFunc.
func StartAllReduceFunc[T any](on Ranks, in, out []T, f func(into, from []T)) (*Request, error) {
	return begin(on, toReduceBy(wire.CallAllReduce, on, 0, in, out, f))
}

// Scan combines each element of in with the same element of the ranks before this one, in out, in
// the order 0, 1 and so on up to this rank: an inclusive scan. out has the length of in, and may be
// in.
func Scan[T Number](ctx context.Context, on Ranks, in, out []T, op Op) error {
	return do(ctx, on, toReduce(wire.CallScan, on, 0, in, out, op))
}

// StartScan starts a Scan.
func StartScan[T Number](on Ranks, in, out []T, op Op) (*Request, error) {
	return begin(on, toReduce(wire.CallScan, on, 0, in, out, op))
}

// ScanFunc is Scan with a function, as ReduceFunc.
func ScanFunc[T any](ctx context.Context, on Ranks, in, out []T, f func(into, from []T)) error {
	return do(ctx, on, toReduceBy(wire.CallScan, on, 0, in, out, f))
}

// StartScanFunc starts a ScanFunc.
func StartScanFunc[T any](on Ranks, in, out []T, f func(into, from []T)) (*Request, error) {
	return begin(on, toReduceBy(wire.CallScan, on, 0, in, out, f))
}

// Gather collects the in of all ranks, which have one length, in out of root, in the order of
// ranks. out has the length of in times Size; other ranks may pass nil.
func Gather[T any](ctx context.Context, on Ranks, root int, in, out []T) error {
	return do(ctx, on, toGather(wire.CallGather, on, root, in, out))
}

// StartGather starts a Gather.
func StartGather[T any](on Ranks, root int, in, out []T) (*Request, error) {
	return begin(on, toGather(wire.CallGather, on, root, in, out))
}

// AllGather is Gather to all ranks.
func AllGather[T any](ctx context.Context, on Ranks, in, out []T) error {
	return do(ctx, on, toGather(wire.CallAllGather, on, 0, in, out))
}

// StartAllGather starts an AllGather.
func StartAllGather[T any](on Ranks, in, out []T) (*Request, error) {
	return begin(on, toGather(wire.CallAllGather, on, 0, in, out))
}

// AllToAll sends each rank a block of in, and receives a block of out from each. The blocks have
// one length and are in the order of ranks, so in and out have a multiple of Size elements. They
// must not overlap.
func AllToAll[T any](ctx context.Context, on Ranks, in, out []T) error {
	return do(ctx, on, toExchange(on, in, out))
}

// StartAllToAll starts an AllToAll.
func StartAllToAll[T any](on Ranks, in, out []T) (*Request, error) {
	return begin(on, toExchange(on, in, out))
}

// plan is a call that is valid, or an error.
type plan struct {
	collective.Spec
	err error
}

func do(ctx context.Context, on Ranks, p plan) error {
	if p.err != nil {
		return p.err
	}
	return call(ctx, on, p.Spec)
}

func begin(on Ranks, p plan) (*Request, error) {
	if p.err != nil {
		return nil, p.err
	}
	return start(on, p.Spec)
}

func toBroadcast[T any](root int, data []T) plan {
	return plan{collective.Spec{Kind: wire.CallBroadcast, Root: root, Out: bytesOf(data)}, flat[T]()}
}

func toReduce[T Number](kind wire.CallKind, on Ranks, root int, in, out []T, op Op) plan {
	combine, err := combiner[T](op)
	if err != nil {
		return plan{err: err}
	}
	p := toReduceBy(kind, on, root, in, out, combine)
	p.Type, p.Op = typeOf[T](), wire.CallOp(op)
	return p
}

func toReduceBy[T any](kind wire.CallKind, on Ranks, root int, in, out []T, f func(into, from []T)) plan {
	if (kind != wire.CallReduce || on.Rank() == root) && len(out) != len(in) {
		return plan{err: fmt.Errorf("margay: %s: %d elements of results for %d elements", kind, len(out), len(in))}
	}
	s := collective.Spec{Kind: kind, Op: wire.OpUser, Root: root, In: bytesOf(in), Out: bytesOf(out), Element: int(unsafe.Sizeof(*new(T)))}
	s.Combine = func(into, from []byte) { f(elementsOf[T](into), elementsOf[T](from)) }
	return plan{s, flat[T]()}
}

func toGather[T any](kind wire.CallKind, on Ranks, root int, in, out []T) plan {
	if (kind == wire.CallAllGather || on.Rank() == root) && len(out) != len(in)*on.Size() {
		return plan{err: fmt.Errorf("margay: %s: room for %d elements of %d", kind, len(out), len(in)*on.Size())}
	}
	return plan{collective.Spec{Kind: kind, Root: root, In: bytesOf(in), Out: bytesOf(out)}, flat[T]()}
}

func toExchange[T any](on Ranks, in, out []T) plan {
	if len(in) != len(out) || len(in)%on.Size() != 0 {
		return plan{err: fmt.Errorf("margay: %s: %d elements for and %d of %d ranks", wire.CallAllToAll, len(in), len(out), on.Size())}
	}
	return plan{collective.Spec{Kind: wire.CallAllToAll, In: bytesOf(in), Out: bytesOf(out)}, flat[T]()}
}

// combiner returns the function of an operation.
func combiner[T Number](op Op) (func(into, from []T), error) {
	switch op {
	case Sum:
		return func(into, from []T) {
			for i := range into {
				into[i] += from[i]
			}
		}, nil
	case Min:
		return func(into, from []T) { choose(into, from, func(a, b T) bool { return b < a }) }, nil
	case Max:
		return func(into, from []T) { choose(into, from, func(a, b T) bool { return a < b }) }, nil
	}
	t := typeOf[T]()
	if op < And || op > Xor || t == wire.TypeFloat32 || t == wire.TypeFloat64 {
		return nil, fmt.Errorf("margay: there is no %s of %s", wire.CallOp(op), t)
	}
	return func(into, from []T) { combineBits(op, bytesOf(into), bytesOf(from)) }, nil
}

// choose replaces an element of into if better reports true.
func choose[T Number](into, from []T, better func(a, b T) bool) {
	for i := range into {
		if better(into[i], from[i]) {
			into[i] = from[i]
		}
	}
}

func combineBits(op Op, into, from []byte) {
	for i := range into {
		switch op {
		case And:
			into[i] &= from[i]
		case Or:
			into[i] |= from[i]
		default:
			into[i] ^= from[i]
		}
	}
}

func typeOf[T Number]() wire.CallType {
	switch any(*new(T)).(type) {
	case int32:
		return wire.TypeInt32
	case int64:
		return wire.TypeInt64
	case uint32:
		return wire.TypeUint32
	case uint64:
		return wire.TypeUint64
	case float32:
		return wire.TypeFloat32
	}
	return wire.TypeFloat64
}

// flat returns an error if the bytes of a T are not all of it.
func flat[T any]() error {
	t := reflect.TypeFor[T]()
	if t.Size() == 0 || !isFlat(t) {
		return fmt.Errorf("margay: elements of type %s cannot be copied to another process", t)
	}
	return nil
}

func isFlat(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Array:
		return isFlat(t.Elem())
	case reflect.Struct:
		for i := range t.NumField() {
			if !isFlat(t.Field(i).Type) {
				return false
			}
		}
		return true
	}
	return t.Kind() >= reflect.Bool && t.Kind() <= reflect.Complex128 && t.Kind() != reflect.Uintptr
}

// bytesOf returns the bytes of elements.
func bytesOf[T any](s []T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*int(unsafe.Sizeof(*new(T))))
}

// elementsOf returns the elements in bytes, which are aligned for them.
func elementsOf[T any](b []byte) []T {
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/int(unsafe.Sizeof(*new(T))))
}
