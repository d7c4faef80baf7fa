// Package headers holds the C headers that package kvcache is compiled with.
//
// kvcache.h and kvcache_api.h are exact copies of those in include/ that a Go module needs, because it cannot
// reach outside of itself; a test compares them. The folder is a package, and is imported, so that "go mod vendor" keeps
// its files.
package headers
