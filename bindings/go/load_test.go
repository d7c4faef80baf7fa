//go:build !kvcache_link

package kvcache_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	kvcache "github.com/libkvcache/libkvcache/bindings/go"
)

// compile makes a shared library of C text.
func compile(t *testing.T, text string) string {
	t.Helper()
	folder := t.TempDir()
	source, library := filepath.Join(folder, "fake.c"), filepath.Join(folder, "libfake.so")
	ok(t, os.WriteFile(source, []byte(text), 0o600))
	if output, err := exec.Command(compiler(t), "-shared", "-fPIC", source, "-o",
		library).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	return library
}

// compiler is the C compiler that cgo uses.
func compiler(t *testing.T) string {
	output, err := exec.Command("go", "env", "CC").Output()
	ok(t, err)
	return strings.TrimSpace(string(output))
}

func contains(t *testing.T, err error, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not name %q", err, part)
		}
	}
}

func TestAMissingLibraryIsNamed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "libnone.so")
	_, err := kvcache.Load(path)
	is(t, err, kvcache.ErrIO)
	contains(t, err, path, "ABI version 0.1", "KVCACHE_LIB")
}

func TestTheEnvironmentNamesTheLibrary(t *testing.T) {
	path := filepath.Join(t.TempDir(), "libelsewhere.so")
	t.Setenv("KVCACHE_LIB", path)
	_, err := kvcache.Load("")
	is(t, err, kvcache.ErrIO)
	contains(t, err, path)
}

func TestALibraryThatIsTooOldIsNamedWithBothVersions(t *testing.T) {
	path := compile(t, `#include <stddef.h>
		unsigned kvc_abi_version(void) { return 0; }
		const void *kvc_get_api(unsigned version) { (void)version; return NULL; }`)
	_, err := kvcache.Load(path)
	is(t, err, kvcache.ErrVersion)
	contains(t, err, path, "its ABI version is 0.0, needed is 0.1")
}

func TestALibraryWithFewerFunctionsIsRefused(t *testing.T) {
	path := compile(t, `#include <stddef.h>
		static const size_t table[] = {40, 1};
		unsigned kvc_abi_version(void) { return 1; }
		const void *kvc_get_api(unsigned version) { (void)version; return table; }`)
	_, err := kvcache.Load(path)
	is(t, err, kvcache.ErrVersion)
	contains(t, err, path, "40 bytes of functions")
}

func TestAnotherLibraryIsRefused(t *testing.T) {
	path := compile(t, "int something_else(void) { return 1; }")
	_, err := kvcache.Load(path)
	is(t, err, kvcache.ErrVersion)
	contains(t, err, path, "it is not libkvcache")
}

func TestThePathIsTheFileThatWasLoaded(t *testing.T) {
	lib := load(t)
	if !strings.Contains(filepath.Base(lib.Path()), "libkvcache") {
		t.Errorf("loaded %s", lib.Path())
	}
	again, err := kvcache.Load(lib.Path())
	ok(t, err)
	if again.Path() != lib.Path() {
		t.Errorf("%s and %s", again.Path(), lib.Path())
	}
}
