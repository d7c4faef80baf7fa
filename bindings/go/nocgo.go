//go:build !cgo

package kvcache

// The package calls C. Without cgo the one error of the compiler is this name.
var _ = this_package_needs_cgo__set_CGO_ENABLED_to_1_and_install_a_C_compiler
