//go:build !race

package kvcache_test

const raceDetector = false
