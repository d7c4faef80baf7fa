// Package testlib finds the library that tests of this repository run against.
package testlib

import (
	"math/rand"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"
	"time"
)

// Find sets KVCACHE_LIB to the library of the repository's build folder, unless it is set already.
func Find() {
	if os.Getenv("KVCACHE_LIB") != "" {
		return
	}
	if path := filepath.Join(Root(), "build", "libkvcache.so"); exists(path) {
		os.Setenv("KVCACHE_LIB", path)
	}
}

// Random gives random numbers of a seed that is printed; KVC_TEST_SEED repeats one.
func Random(t testing.TB) *rand.Rand {
	t.Helper()
	seed := time.Now().UnixNano()
	if text := os.Getenv("KVC_TEST_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseInt(text, 10, 64); err != nil {
			t.Fatalf("KVC_TEST_SEED: %v", err)
		}
	}
	t.Logf("KVC_TEST_SEED=%d", seed)
	return rand.New(rand.NewSource(seed))
}

// Root is the folder of the repository.
func Root() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "..", "..", "..", "..")
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
