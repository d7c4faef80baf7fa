package kvcache

/*
#cgo CFLAGS: -I${SRCDIR}/internal/headers
#include "shim.h"
*/
import "C"

import (
	"fmt"
	"strings"

	_ "github.com/libkvcache/libkvcache/bindings/go/internal/headers"
	_ "github.com/libkvcache/libkvcache/bindings/go/internal/headers/dlpack"
)

// Status is the result of a call, and the error that errors.Is compares with.
type Status int32

// The statuses of kvcache.h.
const (
	StatusOK           Status = C.KVC_OK
	ErrInvalidArgument Status = C.KVC_E_INVALID_ARGUMENT // nil, negative, contradictory
	ErrInvalidState    Status = C.KVC_E_INVALID_STATE    // no open forward, a layer of another kind
	ErrNotFound        Status = C.KVC_E_NOT_FOUND        // unknown sequence
	ErrAlreadyExists   Status = C.KVC_E_ALREADY_EXISTS   // sequence id taken
	ErrOutOfRange      Status = C.KVC_E_OUT_OF_RANGE     // position, length, count, index beyond its limit
	ErrShape           Status = C.KVC_E_SHAPE            // tensor rank, shape, stride or alignment not accepted
	ErrDType           Status = C.KVC_E_DTYPE            // tensor element type not accepted
	ErrDeviceMismatch  Status = C.KVC_E_DEVICE_MISMATCH  // tensor lives on another device than the cache
	ErrUnsupported     Status = C.KVC_E_UNSUPPORTED      // meaningful, but not available
	ErrNoPages         Status = C.KVC_E_NO_PAGES         // full now; Error.Detail pages are missing; nothing changed
	ErrNeverFits       Status = C.KVC_E_NEVER_FITS       // could not be served even by an empty cache
	ErrNoMemory        Status = C.KVC_E_NO_MEMORY        // an allocation failed
	ErrBusy            Status = C.KVC_E_BUSY             // in use: open forward, exported memory
	ErrBufferTooSmall  Status = C.KVC_E_BUFFER_TOO_SMALL
	ErrVersion         Status = C.KVC_E_VERSION // struct or version not understood; a library that is too old
	ErrCorrupt         Status = C.KVC_E_CORRUPT // an invariant does not hold
	ErrIO              Status = C.KVC_E_IO
	ErrTimeout         Status = C.KVC_E_TIMEOUT
	ErrPeer            Status = C.KVC_E_PEER
	ErrCancelled       Status = C.KVC_E_CANCELLED
	ErrDevice          Status = C.KVC_E_DEVICE   // device failure, sticky; Error.SysCode is the device library's code
	ErrInternal        Status = C.KVC_E_INTERNAL // a defect in the library
)

// errClosed is the status behind ErrClosed. The library has none of this number.
const errClosed Status = -1

var statusNames = [...]string{
	"KVC_OK", "KVC_E_INVALID_ARGUMENT", "KVC_E_INVALID_STATE", "KVC_E_NOT_FOUND", "KVC_E_ALREADY_EXISTS",
	"KVC_E_OUT_OF_RANGE", "KVC_E_SHAPE", "KVC_E_DTYPE", "KVC_E_DEVICE_MISMATCH", "KVC_E_UNSUPPORTED", "KVC_E_NO_PAGES", "KVC_E_NEVER_FITS",
	"KVC_E_NO_MEMORY", "KVC_E_BUSY", "KVC_E_BUFFER_TOO_SMALL", "KVC_E_VERSION", "KVC_E_CORRUPT", "KVC_E_IO",
	"KVC_E_TIMEOUT", "KVC_E_PEER", "KVC_E_CANCELLED", "KVC_E_DEVICE", "KVC_E_INTERNAL",
}

// String is the name of the status in C, for example "KVC_E_NO_PAGES".
func (s Status) String() string {
	if s < 0 || int(s) >= len(statusNames) {
		return "KVC_E_UNKNOWN"
	}
	return statusNames[s]
}

// Error makes a Status the target of errors.Is.
func (s Status) Error() string {
	if s == errClosed {
		return "kvcache: the handle is closed"
	}
	return "kvcache: " + s.String()
}

// ErrClosed is the error of a method of a closed handle. Such an error is also ErrInvalidState.
var ErrClosed error = errClosed

// Error is a failed call. Msg names the argument and both values.
type Error struct {
	Status  Status
	SysCode int32 // errno or a device library's code, else 0
	Detail  int64 // a number that belongs to the status: missing pages, offending id, needed bytes
	Msg     string

	closed bool
}

func (e *Error) Error() string {
	return "kvcache: " + e.Msg + " (" + e.Status.String() + ")"
}

// Is reports whether target is the status of e.
func (e *Error) Is(target error) bool {
	status, ok := target.(Status)
	return ok && (status == e.Status || status == errClosed && e.closed)
}

// failure turns the result of a shim into an error.
func failure(e *C.kvc_error) error {
	if e == nil {
		return nil
	}
	return takeError(e)
}

func takeError(e *C.kvc_error) error {
	err := &Error{
		Status:  Status(e.status),
		SysCode: int32(e.sys_code),
		Detail:  int64(e.detail),
		Msg:     strings.ToValidUTF8(C.GoString(&e.message[0]), "?"),
	}
	C.shim_error_free(e)
	return err
}

func invalid(format string, args ...any) *Error {
	return &Error{Status: ErrInvalidArgument, Msg: fmt.Sprintf(format, args...)}
}

func closedError(what string) error {
	return &Error{Status: ErrInvalidState, Msg: what + " is closed", closed: true}
}
