//go:build kvcache_link

package kvcache_test

import (
	"testing"

	kvcache "github.com/libkvcache/libkvcache/bindings/go"
)

func TestALinkedProgramLoadsNothingElse(t *testing.T) {
	_, err := kvcache.Load("elsewhere.so")
	says(t, err, kvcache.ErrInvalidArgument,
		`path: "elsewhere.so", but the program was linked with libkvcache (build tag kvcache_link)`)
	if path := load(t).Path(); path != "(linked)" {
		t.Errorf("loaded %s", path)
	}
}
