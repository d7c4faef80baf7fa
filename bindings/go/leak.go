package kvcache

import (
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
)

// Leak is a handle that was collected before it was closed. Its memory stays with the library.
type Leak struct {
	What  string // "Cache", "Forward", ...
	Stack string // where it was made
}

// leakReporter holds the function of ReportLeaks, or nil.
var leakReporter atomic.Pointer[func(Leak)]

// ReportLeaks has report called, on a goroutine of the runtime, for each handle made from now on that the
// garbage collector finds before it was closed; nil: not any more. For tests: making a handle then notes the
// stack.
func ReportLeaks(report func(Leak)) {
	if report == nil {
		leakReporter.Store(nil)
		return
	}
	leakReporter.Store(&report)
}

// leakWatch is what is known of a watched handle without keeping it alive.
type leakWatch struct {
	what   string
	stack  []uintptr
	closed atomic.Bool
	stop   func()
}

// watch notes where a handle is made, when somebody listens.
func watch[T any](handle *T, what string) *leakWatch {
	if leakReporter.Load() == nil {
		return nil
	}
	w := &leakWatch{what: what, stack: make([]uintptr, 16)}
	w.stack = w.stack[:runtime.Callers(3, w.stack)]
	w.stop = whenCollected(handle, w)
	return w
}

// done says that the handle was closed.
func (w *leakWatch) done() {
	if w != nil {
		w.closed.Store(true)
		w.stop()
	}
}

// report is called when the handle was collected.
func (w *leakWatch) report() {
	listener := leakReporter.Load()
	if w.closed.Load() || listener == nil {
		return
	}
	var text strings.Builder
	frames := runtime.CallersFrames(w.stack)
	for {
		frame, more := frames.Next()
		text.WriteString(frame.Function + "\n\t" + frame.File + ":" + strconv.Itoa(frame.Line) + "\n")
		if !more {
			break
		}
	}
	(*listener)(Leak{What: w.what, Stack: text.String()})
}
