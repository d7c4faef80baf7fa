package kvcache

// API and Handle are for the comparison with calls from C.
func (l *Library) API() uintptr    { return uintptr(l.api) }
func (f *Forward) Handle() uintptr { return uintptr(f.h) }

// Callbacks counts the Go values that C may call back.
func Callbacks() int {
	callbacks.mu.RLock()
	defer callbacks.mu.RUnlock()
	return len(callbacks.values)
}
