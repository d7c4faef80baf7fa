//go:build go1.24

package kvcache

import "runtime"

// whenCollected has w.report called when handle is garbage, unless the result is called before.
func whenCollected[T any](handle *T, w *leakWatch) func() {
	return runtime.AddCleanup(handle, func(w *leakWatch) { w.report() }, w).Stop
}
