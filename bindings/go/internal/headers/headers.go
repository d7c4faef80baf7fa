// Package headers holds the C headers that package kvcache is compiled with.
//
// kvcache.h is the exact copy of include/kvcache.h that a Go module needs, because it cannot reach outside of
// itself; a test compares the two. The folder is a package, and is imported, so that "go mod vendor" keeps
// its files.
package headers
