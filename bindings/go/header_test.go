package kvcache_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/libkvcache/libkvcache/bindings/go/internal/testlib"
)

// repository reads a file of the repository around the module, and skips where there is none.
func repository(t *testing.T, path ...string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(append([]string{testlib.Root()}, path...)...))
	if os.IsNotExist(err) {
		t.Skip("the module is not inside of its repository")
	}
	ok(t, err)
	return text
}

func TestTheCopiesOfTheHeadersAreExact(t *testing.T) {
	for _, name := range []string{"kvcache.h", "kvcache_api.h"} {
		wanted := repository(t, "include", name)
		got, err := os.ReadFile(filepath.Join("internal", "headers", name))
		ok(t, err)
		if !bytes.Equal(got, wanted) {
			t.Errorf("internal/headers/%s is not include/%s: copy it", name, name)
		}
	}
}

// layout is tests/abi/layout.json.
type layout struct {
	Structs map[string]struct {
		Size, Align int
		Fields      map[string][2]int
	}
	Constants map[string]int64
}

func TestStructsAndConstantsAreThoseOfTheABI(t *testing.T) {
	var stored layout
	ok(t, json.Unmarshal(repository(t, "tests", "abi", "layout.json"), &stored))
	if len(stored.Structs) < 25 || len(stored.Constants) < 100 {
		t.Fatalf("only %d structs and %d constants", len(stored.Structs), len(stored.Constants))
	}
	var program bytes.Buffer
	program.WriteString("#include <kvcache_api.h>\n#include <stdio.h>\nint main(void) {\n  int wrong = 0;\n")
	check := func(expression string, wanted int64) {
		fmt.Fprintf(&program, "  if ((long long)(%s) != %dLL) wrong = 1,\n", expression, wanted)
		fmt.Fprintf(&program, "    printf(\"%s is %%lld instead of %d\\n\", (long long)(%s));\n", expression, wanted, expression)
	}
	for name, one := range stored.Structs {
		check(fmt.Sprintf("sizeof(%s)", name), int64(one.Size))
		check(fmt.Sprintf("_Alignof(%s)", name), int64(one.Align))
		for field, place := range one.Fields {
			check(fmt.Sprintf("offsetof(%s, %s)", name, field), int64(place[0]))
			check(fmt.Sprintf("sizeof(((%s *)0)->%s)", name, field), int64(place[1]))
		}
	}
	for name, value := range stored.Constants {
		check(name, value)
	}
	program.WriteString("  return wrong;\n}\n")
	source := filepath.Join(t.TempDir(), "layout.c")
	ok(t, os.WriteFile(source, program.Bytes(), 0o600))
	cc, err := exec.Command("go", "env", "CC").Output()
	ok(t, err)
	build := exec.Command(strings.TrimSpace(string(cc)), "-I", filepath.Join("internal", "headers"), source,
		"-o", source+".out")
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	if output, err := exec.Command(source + ".out").CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, output)
	}
}

func TestEveryFunctionOfTheTableIsCalled(t *testing.T) {
	header, err := os.ReadFile(filepath.Join("internal", "headers", "kvcache_api.h"))
	ok(t, err)
	table := regexp.MustCompile(`(?s)typedef struct kvc_api \{.*?\} kvc_api;`).Find(header)
	var shims bytes.Buffer
	paths, err := filepath.Glob("shim*.h")
	ok(t, err)
	for _, path := range paths {
		text, err := os.ReadFile(path)
		ok(t, err)
		shims.Write(text)
	}
	// A configuration is zeroed by calloc.
	unused := map[string]bool{"config_init": true}
	functions := regexp.MustCompile(`\(\*(\w+)\)\(`).FindAllSubmatch(table, -1)
	if len(functions) < 90 {
		t.Fatalf("only %d functions in the table", len(functions))
	}
	for _, function := range functions {
		name := string(function[1])
		if !unused[name] && !strings.Contains(shims.String(), "->"+name+"(") {
			t.Errorf("kvc_%s is not called", name)
		}
	}
}

func TestTheReadmeIsTheExample(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	ok(t, err)
	example, err := os.ReadFile("example_test.go")
	ok(t, err)
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllSubmatch(readme, -1)
	if len(blocks) < 2 {
		t.Errorf("README.md has %d blocks", len(blocks))
	}
	for _, block := range blocks {
		if !bytes.Contains(example, block[1]) {
			t.Errorf("example_test.go lacks this of README.md:\n%s", block[1])
		}
	}
}
