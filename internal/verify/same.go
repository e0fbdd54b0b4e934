package verify

import (
	"bytes"
	"encoding/json"
	"maps"
	"math/big"
	"reflect"
	"slices"
	"strings"
)

// sameJSON reports whether two texts are the same value: the order of names does not count,
// and numbers are compared as exact decimals.
func sameJSON(a, b []byte) bool {
	if bytes.Equal(a, b) {
		return true
	}
	x, okX := parse(a)
	y, okY := parse(b)
	return okX && okY && sameValue(x, y)
}

func parse(text []byte) (v any, ok bool) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	return v, d.Decode(&v) == nil && !d.More()
}

func sameValue(x, y any) bool {
	switch x := x.(type) {
	case map[string]any:
		y, ok := y.(map[string]any)
		return ok && maps.EqualFunc(x, y, sameValue)
	case []any:
		y, ok := y.([]any)
		return ok && slices.EqualFunc(x, y, sameValue)
	case json.Number:
		y, ok := y.(json.Number)
		return ok && sameNumber(x.String(), y.String())
	default:
		return reflect.DeepEqual(x, y)
	}
}

// maxExponent bounds the digits that a comparison of numbers may write out.
const maxExponent = 5

func sameNumber(a, b string) bool {
	if a == b {
		return true
	}
	for _, text := range []string{a, b} {
		if _, exponent, ok := strings.Cut(strings.ToLower(text), "e"); ok && len(strings.TrimLeft(exponent, "+-0")) > maxExponent {
			return false
		}
	}
	x, okX := new(big.Rat).SetString(a)
	y, okY := new(big.Rat).SetString(b)
	return okX && okY && x.Cmp(y) == 0
}

// differing returns the names of the fields that are not the same in two documents, sorted.
func differing(a, b []byte) []string {
	x, _ := parse(a)
	y, _ := parse(b)
	left, _ := x.(map[string]any)
	right, _ := y.(map[string]any)
	names := map[string]bool{}
	for name, v := range left {
		if w, ok := right[name]; !ok || !sameValue(v, w) {
			names[name] = true
		}
	}
	for name := range right {
		if _, ok := left[name]; !ok {
			names[name] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}
