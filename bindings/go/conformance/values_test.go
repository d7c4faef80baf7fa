package conformance

import (
	"fmt"
	"math"
	"strings"
)

// kind is what a number is of.
type kind uint32

const (
	ofQuery kind = iota + 1
	ofKey
	ofValue
	ofState
	ofInput
	ofWeight
	ofDecay
	ofBeta
)

// value is the number of the scenarios: a multiple of 1/64 in [-1, 1), exact in every storage type.
func value(what kind, layer int, id int64, head, element int) float64 {
	x := uint32(id)*0x9E3779B1 + uint32(layer)*0x85EBCA77 + uint32(head)*0xC2B2AE3D +
		uint32(element)*0x27D4EB2F + uint32(what)*0x165667B1
	x ^= x >> 15
	x *= 0x2C1B3C6D
	x ^= x >> 12
	x *= 0x297A2D39
	x ^= x >> 15
	return (float64(x&127) - 64) / 64
}

func values(what kind, layer int, id int64, head, size int) []float64 {
	out := make([]float64, size)
	for i := range out {
		out[i] = value(what, layer, id, head, i)
	}
	return out
}

// parseIDs reads "0..3,7,@-1..@". own is the meaning of '@', nil for none; numbers below zero are left out
// where it is given.
func parseIDs(text string, own *int64) []int64 {
	out := []int64{}
	if text == "" {
		return out
	}
	parseOne := func(part string) int64 {
		if !strings.HasPrefix(part, "@") {
			return number(part)
		}
		if own == nil {
			panic("'@' has no meaning in this list")
		}
		if part == "@" {
			return *own
		}
		return *own + number(strings.TrimPrefix(part[1:], "+"))
	}
	for _, part := range strings.Split(text, ",") {
		first, last := part, part
		if at := strings.Index(part, ".."); at >= 0 {
			first, last = part[:at], part[at+2:]
		}
		begin, end := parseOne(first), parseOne(last)
		if end < begin {
			panic(fmt.Sprintf("'%s' is an empty range", part))
		}
		for id := begin; id <= end; id++ {
			if own == nil || id >= 0 {
				out = append(out, id)
			}
		}
	}
	return out
}

// rotation is the rotary embedding of one layer as a scenario states it.
type rotation struct {
	on, interleaved     bool
	offset, rotaryDim   int
	scale, magnitude    float64
	frequencies         []float64
	longFrequencies     []float64 // nil: as the others
	sections            []int
	sectionsInterleaved bool
}

// turn rotates x in place at a position: one number, or one of each section.
func (r *rotation) turn(position []float64, long bool, x []float64) {
	if !r.on {
		return
	}
	frequencies := r.frequencies
	if long && r.longFrequencies != nil {
		frequencies = r.longFrequencies
	}
	half, n := r.rotaryDim/2, len(r.sections)
	section, left := 0, half
	if n > 0 {
		left = r.sections[0]
	}
	for i := 0; i < half; i++ {
		switch {
		case n > 1 && !r.sectionsInterleaved:
			for left == 0 {
				section++
				left = r.sections[section]
			}
			left--
		case n > 1:
			section = 0
			if i/n < r.sections[i%n] {
				section = i % n
			}
		}
		p := position[0]
		if len(position) > 1 {
			p = position[section]
		}
		sin, cos := math.Sincos(p * r.scale * frequencies[i])
		first, second := r.offset+i, r.offset+i+half
		if r.interleaved {
			first, second = r.offset+2*i, r.offset+2*i+1
		}
		a, b := x[first], x[second]
		x[first] = r.magnitude * (a*cos - b*sin)
		x[second] = r.magnitude * (b*cos + a*sin)
	}
}

// softmax is how one query head weighs its keys.
type softmax struct {
	scale, softCap float64
	sink           *float64
}

// seen is a key with its value and what is added to its score.
type seen struct {
	k, v []float64
	bias float64
}

// attend is one query head over the keys it sees.
func attend(how softmax, q []float64, keys []seen, vDim int) (out []float64, lse float64) {
	out, lse = make([]float64, vDim), math.Inf(-1)
	scores, top := make([]float64, len(keys)), math.Inf(-1)
	for j, one := range keys {
		s := 0.0
		for i := range q {
			s += q[i] * one.k[i]
		}
		s *= how.scale
		if how.softCap > 0 {
			s = how.softCap * math.Tanh(s/how.softCap)
		}
		scores[j] = s + one.bias
		top = math.Max(top, scores[j])
	}
	if math.IsInf(top, -1) {
		return out, lse
	}
	sum := 0.0
	for j, one := range keys {
		weight := math.Exp(scores[j] - top)
		sum += weight
		for d := range out {
			out[d] += weight * one.v[d]
		}
	}
	lse = top + math.Log(sum)
	if how.sink != nil {
		sum += math.Exp(*how.sink - top)
	}
	for d := range out {
		out[d] /= sum
	}
	return out, lse
}
