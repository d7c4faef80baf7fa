package conformance

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	kvcache "github.com/libkvcache/libkvcache/bindings/go"
	"github.com/libkvcache/libkvcache/bindings/go/internal/testlib"
)

var scenarios = filepath.Join("..", "..", "..", "tests", "conformance", "scenarios")

func TestMain(m *testing.M) {
	os.Exit(testlib.Main(m))
}

func TestEveryScenarioHoldsOnEveryInstructionSet(t *testing.T) {
	paths, err := filepath.Glob(filepath.Join(scenarios, "*.json"))
	if err != nil {
		t.Fatal(err)
	}
	if len(paths) == 0 {
		t.Skip("the module is not inside of its repository")
	}
	if len(paths) < 60 {
		t.Errorf("only %d scenarios", len(paths))
	}
	lib := testlib.Load(t)
	caps, err := lib.DeviceQuery(kvcache.Device{})
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		name := strings.TrimSuffix(filepath.Base(path), ".json")
		scenario, err := loadScenario(path)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if scenario.text("name") != name {
			t.Errorf("%s: its name is %s", name, scenario.text("name"))
		}
		for isa := kvcache.ISAReference; isa <= kvcache.ISAAVX512BF16; isa++ {
			if isa := isa; caps.Has(isa) {
				t.Run(name+"/"+isa.String(), func(t *testing.T) { runScenario(t, lib, scenario, isa) })
			}
		}
	}
}

func TestTheRunnerComputesTheNumbersOfTheReadme(t *testing.T) {
	for _, one := range []struct{ got, wanted float64 }{
		{value(ofKey, 0, 0, 0, 0), -0.109375}, {value(ofValue, 1, 5, 2, 3), -0.4375}, {value(ofQuery, 0, 1000,
			1, 7), -0.78125},
	} {
		if one.got != one.wanted {
			t.Errorf("%v instead of %v", one.got, one.wanted)
		}
	}
}

func TestTheRunnerRefusesUnknownAndRepeatedKeys(t *testing.T) {
	for text, wanted := range map[string]string{
		`{"name":"x","about":"","config":{"layers":[{}]},"steps":[{"op":"add","sequence":1}]}`: "step 0: unknown key 'sequence'",
		`{"name":"x","about":"","config":{"layers":[{}],"pages":3},"steps":[]}`:                "config: unknown key 'pages'",
		`{"name":"x","name":"y"}`: `key "name" is written twice`,
	} {
		path := filepath.Join(t.TempDir(), "x.json")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := loadScenario(path); err == nil || err.Error() != wanted {
			t.Errorf("%v instead of %s", err, wanted)
		}
	}
}
