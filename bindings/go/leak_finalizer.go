//go:build !go1.24

package kvcache

import "runtime"

// whenCollected has w.report called when handle is garbage, unless w was told that it is closed.
func whenCollected[T any](handle *T, w *leakWatch) func() {
	runtime.SetFinalizer(handle, func(*T) { w.report() })
	return func() {}
}
