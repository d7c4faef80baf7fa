// Package testlib finds the library that tests of this module run against.
package testlib

import (
	"flag"
	"fmt"
	"math/rand"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"
	"time"

	kvcache "github.com/libkvcache/libkvcache/bindings/go"
)

// Main runs the tests of a package, for its TestMain. Where no library is installed, examples cannot skip
// themselves: they are left out.
func Main(m *testing.M) int {
	Find()
	flag.Parse()
	if err := missing(); err != nil {
		fmt.Fprintln(os.Stderr, "testlib: tests that need libkvcache are skipped, set KVCACHE_LIB:", err)
		if skip := flag.Lookup("test.skip"); skip != nil && skip.Value.String() == "" {
			if err := skip.Value.Set("^Example"); err != nil {
				return 1
			}
		}
	}
	return m.Run()
}

// Load gives the library. A test is skipped where there is none, and fails where KVCACHE_LIB names one that
// cannot be used.
func Load(t testing.TB) *kvcache.Library {
	t.Helper()
	if err := missing(); err != nil {
		t.Skip("libkvcache is not here: set KVCACHE_LIB")
	}
	lib, err := kvcache.Load("")
	if err != nil {
		t.Fatal(err)
	}
	return lib
}

// missing is why there is no library; nil where KVCACHE_LIB names one, whether it can be used or not.
func missing() error {
	if os.Getenv("KVCACHE_LIB") != "" {
		return nil
	}
	_, err := kvcache.Load("")
	return err
}

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
