package conformance

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	kvcache "github.com/libkvcache/libkvcache/bindings/go"
	"github.com/libkvcache/libkvcache/bindings/go/internal/testlib"
)

var cases = filepath.Join("..", "..", "..", "tests", "conformance", "cases")

func TestMain(m *testing.M) {
	os.Exit(testlib.Main(m))
}

func TestEveryCaseHoldsOnEveryInstructionSet(t *testing.T) {
	paths, err := filepath.Glob(filepath.Join(cases, "*.json"))
	if err != nil {
		t.Fatal(err)
	}
	if len(paths) == 0 {
		t.Skip("the module is not inside of its repository")
	}
	if len(paths) < 160 {
		t.Errorf("only %d cases", len(paths))
	}
	lib := testlib.Load(t)
	caps, err := lib.DeviceQuery(kvcache.Device{})
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		name := strings.TrimSuffix(filepath.Base(path), ".json")
		for isa := kvcache.ISAReference; isa <= kvcache.ISAAVX512BF16; isa++ {
			if isa := isa; caps.Has(isa) {
				from, err := readCase(path)
				if err != nil || from.text("name") != name || from.text("about") == "" {
					t.Fatalf("%s: %v", path, err)
				}
				t.Run(name+"/"+isa.String(), func(t *testing.T) { play(t, lib, from, isa) })
			}
		}
	}
}

func TestTheGeneratorGivesTheNumbersOfTheReadme(t *testing.T) {
	for _, one := range []struct{ got, wanted float64 }{
		{value(2, 0, 0, 0, 0), -0.109375}, {value(3, 1, 5, 2, 3), -0.4375}, {value(1, 0, 1000, 1, 7), -0.78125},
	} {
		if one.got != one.wanted {
			t.Errorf("%v instead of %v", one.got, one.wanted)
		}
	}
}

func TestKeysThatNobodyReadsAreRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.json")
	if err := os.WriteFile(path, []byte(`{"read":1,"list":[{"unread":2}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	from, err := readCase(path)
	if err != nil || from.i64("read") != 1 || len(from.list("list")) != 1 {
		t.Fatal("the file is not read")
	}
	defer func() {
		if found := recover(); found != "case.list: unknown key 'unread'" {
			t.Errorf("found %v", found)
		}
	}()
	refuseUnread(from, "case")
}
