package conformance

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
)

// object is a JSON object. Its getters panic where a scenario is not what README.md says; the runner makes
// failures of these panics.
type object map[string]any

func (o object) has(key string) bool { _, found := o[key]; return found }

func (o object) must(key string) any {
	value, found := o[key]
	if !found {
		panic(fmt.Sprintf("'%s' is missing in %v", key, o))
	}
	return value
}

func (o object) i64(key string) int64 { return toInt(o.must(key)) }
func (o object) num(key string) int   { return int(toInt(o.must(key))) }
func (o object) text(key string) string {
	return o.must(key).(string)
}
func (o object) list(key string) []any { return o.must(key).([]any) }
func (o object) object(key string) object {
	if !o.has(key) {
		return object{}
	}
	return o[key].(object)
}

func (o object) i64Or(key string, other int64) int64 {
	if !o.has(key) {
		return other
	}
	return toInt(o[key])
}
func (o object) intOr(key string, other int) int { return int(o.i64Or(key, int64(other))) }
func (o object) f64Or(key string, other float64) float64 {
	if !o.has(key) {
		return other
	}
	return toFloat(o[key])
}
func (o object) textOr(key, other string) string {
	if !o.has(key) {
		return other
	}
	return o[key].(string)
}
func (o object) boolOr(key string, other bool) bool {
	if !o.has(key) {
		return other
	}
	return o[key].(bool)
}
func (o object) listOr(key string) []any {
	if !o.has(key) {
		return nil
	}
	return o[key].([]any)
}

func toInt(value any) int64 {
	number, err := value.(json.Number).Int64()
	if err != nil {
		panic(err)
	}
	return number
}

func toFloat(value any) float64 {
	number, err := value.(json.Number).Float64()
	if err != nil {
		panic(err)
	}
	return number
}

func ints(list []any) []int64 {
	out := make([]int64, len(list))
	for i, value := range list {
		out[i] = toInt(value)
	}
	return out
}

func ints32(list []any) []int32 {
	out := make([]int32, len(list))
	for i, value := range list {
		out[i] = int32(toInt(value))
	}
	return out
}

func floats(list []any) []float64 {
	out := make([]float64, len(list))
	for i, value := range list {
		out[i] = toFloat(value)
	}
	return out
}

func texts(list []any) []string {
	out := make([]string, len(list))
	for i, value := range list {
		out[i] = value.(string)
	}
	return out
}

// jsonNumber is a number as the reader gives it.
func jsonNumber(value int) json.Number { return json.Number(strconv.Itoa(value)) }

func number(text string) int64 {
	value, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		panic(err)
	}
	return value
}

// isFlat tells a list of numbers from a list of lists.
func isFlat(list []any) bool {
	if len(list) == 0 {
		return true
	}
	_, ok := list[0].(json.Number)
	return ok
}

// readObject parses a file; a key that is written twice is an error.
func readObject(path string) (object, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	value, err := parse(decoder)
	if err != nil {
		return nil, err
	}
	if _, err := decoder.Token(); err != io.EOF {
		return nil, fmt.Errorf("something follows the object")
	}
	out, ok := value.(object)
	if !ok {
		return nil, fmt.Errorf("it is not an object")
	}
	return out, nil
}

func parse(decoder *json.Decoder) (any, error) {
	token, err := decoder.Token()
	if err != nil {
		return nil, err
	}
	switch token {
	case json.Delim('{'):
		out := object{}
		for decoder.More() {
			key, err := decoder.Token()
			if err != nil {
				return nil, err
			}
			if out.has(key.(string)) {
				return nil, fmt.Errorf("key %q is written twice", key)
			}
			if out[key.(string)], err = parse(decoder); err != nil {
				return nil, err
			}
		}
		_, err := decoder.Token()
		return out, err
	case json.Delim('['):
		out := []any{}
		for decoder.More() {
			value, err := parse(decoder)
			if err != nil {
				return nil, err
			}
			out = append(out, value)
		}
		_, err := decoder.Token()
		return out, err
	}
	return token, nil
}
