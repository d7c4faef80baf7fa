package kvcache

import "math"

// BFloat16 is a bfloat16 number by its bits.
type BFloat16 uint16

// Float16 is an IEEE half precision number by its bits.
type Float16 uint16

// ToBFloat16 rounds to nearest even.
func ToBFloat16(x float32) BFloat16 {
	bits := math.Float32bits(x)
	if x != x {
		return BFloat16(bits>>16 | 0x40)
	}
	return BFloat16((bits + 0x7FFF + bits>>16&1) >> 16)
}

// Float32 is exact.
func (x BFloat16) Float32() float32 { return math.Float32frombits(uint32(x) << 16) }

// ToFloat16 rounds to nearest even; what is too large becomes infinite.
func ToFloat16(x float32) Float16 {
	bits := math.Float32bits(x)
	sign := Float16(bits >> 16 & 0x8000)
	magnitude := bits & 0x7FFFFFFF
	switch {
	case magnitude > 0x7F800000:
		return sign | 0x7E00
	case magnitude >= 0x477FF000: // 65520 and more
		return sign | 0x7C00
	case magnitude < 0x38800000: // below 2^-14: a multiple of 2^-24
		return sign | Float16(math.RoundToEven(float64(math.Float32frombits(magnitude))*(1<<24)))
	}
	return sign | Float16((magnitude-0x38000000+0xFFF+magnitude>>13&1)>>13)
}

// Float32 is exact.
func (x Float16) Float32() float32 {
	sign := uint32(x&0x8000) << 16
	exponent, fraction := uint32(x>>10&31), uint32(x&0x3FF)
	switch exponent {
	case 0:
		return math.Float32frombits(sign | math.Float32bits(float32(fraction)/(1<<24)))
	case 31:
		return math.Float32frombits(sign | 0x7F800000 | fraction<<13)
	}
	return math.Float32frombits(sign | (exponent+112)<<23 | fraction<<13)
}
