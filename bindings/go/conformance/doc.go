// Package conformance plays the cases of tests/conformance, which every binding plays, through the public
// interface of package kvcache. See tests/conformance/README.md for what a case is and what a runner has
// to check. It holds tests only.
package conformance
