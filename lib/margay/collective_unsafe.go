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
// Every rank of the job must make the same calls, in the same order, with the same root and length.
// Elements are copied as their bytes and must hold no pointers.
// A call that waits handles messages. A rank returns when its own part is done: only after an
// AllReduce or an AllGather is it certain that every rank has made the call. A handler must not
// make a call. Goroutines must agree on an order, as ranks must.
//
// An error, or the end of ctx, ends collective operations for this rank: all later ones return the
// same error. ErrMismatch says which two calls did not match; not every difference is found. If a
// rank ends without making a call, the job ends.

// ErrMismatch reports that the ranks of the job make different collective calls.
var ErrMismatch = collective.ErrMismatch

// Broadcast copies data of root to data of all ranks.
func Broadcast[T any](ctx context.Context, j *Job, root int, data []T) error {
	if err := flat[T](); err != nil {
		return err
	}
	b := bytesOf(data)
	return j.call(ctx, root, wire.Call{Kind: wire.CallBroadcast, Length: uint64(len(b))}, func(c collective.Carrier, p collective.Place) error {
		return collective.Broadcast(c, p, b)
	})
}

// Reduce combines each element of in with the same element of the other ranks, in out of root, in
// the order root, root+1 and so on, wrapping behind the last rank. The way in which they are
// associated depends on the number of ranks only, so equal values give an equal result each time.
// out has the length of in, and may be in; other ranks may pass nil.
func Reduce[T Number](ctx context.Context, j *Job, root int, in, out []T, op Op) error {
	combine, err := combiner[T](op)
	if err != nil {
		return err
	}
	return reduce(ctx, j, wire.CallReduce, root, in, out, typeOf[T](), wire.CallOp(op), combine)
}

// ReduceFunc is Reduce with a function that combines from into into, which have one length. The
// function must be associative.
func ReduceFunc[T any](ctx context.Context, j *Job, root int, in, out []T, f func(into, from []T)) error {
	return reduce(ctx, j, wire.CallReduce, root, in, out, 0, wire.OpUser, f)
}

// AllReduce is Reduce with root 0 whose result all ranks get: the same bits.
func AllReduce[T Number](ctx context.Context, j *Job, in, out []T, op Op) error {
	combine, err := combiner[T](op)
	if err != nil {
		return err
	}
	return reduce(ctx, j, wire.CallAllReduce, 0, in, out, typeOf[T](), wire.CallOp(op), combine)
}

// AllReduceFunc is AllReduce with a function, as ReduceFunc.
func AllReduceFunc[T any](ctx context.Context, j *Job, in, out []T, f func(into, from []T)) error {
	return reduce(ctx, j, wire.CallAllReduce, 0, in, out, 0, wire.OpUser, f)
}

// Gather collects the in of all ranks, which have one length, in out of root, in the order of
// ranks. out has the length of in times Size; other ranks may pass nil.
func Gather[T any](ctx context.Context, j *Job, root int, in, out []T) error {
	return gather(ctx, j, wire.CallGather, root, in, out)
}

// AllGather is Gather to all ranks.
func AllGather[T any](ctx context.Context, j *Job, in, out []T) error {
	return gather(ctx, j, wire.CallAllGather, 0, in, out)
}

func reduce[T any](ctx context.Context, j *Job, kind wire.CallKind, root int, in, out []T, t wire.CallType, op wire.CallOp,
	combine func(into, from []T)) error {
	if (kind == wire.CallAllReduce || j.Rank() == root) && len(out) != len(in) {
		return fmt.Errorf("margay: %s: %d elements of results for %d elements", kind, len(out), len(in))
	}
	if err := flat[T](); err != nil {
		return err
	}
	size := int(unsafe.Sizeof(*new(T)))
	call := wire.Call{Kind: kind, Type: t, Op: op, Length: uint64(len(in) * size)}
	return j.call(ctx, root, call, func(c collective.Carrier, p collective.Place) error {
		raw := func(into, from []byte) { combine(elementsOf[T](into), elementsOf[T](from)) }
		aligned := func(bytes int) []byte { return bytesOf(make([]uint64, (bytes+7)/8)) } // for any element
		if b := bytesOf(in); kind == wire.CallAllReduce && collective.IsSmall(p.Size, j.Nodes(), len(b)) {
			return collective.AllReduce(c, p, b, bytesOf(out), aligned(p.Size*len(b)), raw)
		}
		err := collective.Reduce(c, p, bytesOf(in), bytesOf(out), size, aligned(2*collective.Piece(size)), raw)
		if err == nil && kind == wire.CallAllReduce {
			err = collective.Broadcast(c, p, bytesOf(out))
		}
		return err
	})
}

func gather[T any](ctx context.Context, j *Job, kind wire.CallKind, root int, in, out []T) error {
	if (kind == wire.CallAllGather || j.Rank() == root) && len(out) != len(in)*j.Size() {
		return fmt.Errorf("margay: %s: room for %d elements of %d", kind, len(out), len(in)*j.Size())
	}
	if err := flat[T](); err != nil {
		return err
	}
	b := bytesOf(in)
	return j.call(ctx, root, wire.Call{Kind: kind, Length: uint64(len(b))}, func(c collective.Carrier, p collective.Place) error {
		err := collective.Gather(c, p, b, bytesOf(out))
		if err == nil && kind == wire.CallAllGather {
			err = collective.Broadcast(c, p, bytesOf(out))
		}
		return err
	})
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
