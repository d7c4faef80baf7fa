// Package conformance plays the scenarios of tests/conformance, which every binding plays, through the public
// interface of package kvcache. See tests/conformance/README.md for what a scenario is and what a runner has
// to check. It holds tests only.
package conformance
