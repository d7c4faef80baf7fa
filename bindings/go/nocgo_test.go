package kvcache_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

func TestWithoutCgoTheCompilerSaysWhatIsMissing(t *testing.T) {
	build := exec.Command("go", "build", ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	output, err := build.CombinedOutput()
	if err == nil {
		t.Fatal("the package was built without cgo")
	}
	const name = "undefined: this_package_needs_cgo__set_CGO_ENABLED_to_1_and_install_a_C_compiler"
	lines := strings.Split(strings.TrimSpace(string(output)), "\n")
	if len(lines) != 2 || !strings.HasSuffix(lines[1], name) {
		t.Errorf("the compiler says %q", output)
	}
}
