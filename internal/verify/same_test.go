package verify

import (
	"slices"
	"testing"

	"github.com/samuelhu324-dev/weft/projections"
)

func TestSameJSON(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{`{"a":1}`, `{"a":1}`, true},
		{`{"a":1,"b":[1,2]}`, `{ "b": [1, 2], "a": 1 }`, true},
		{`{"a":1.10}`, `{"a":1.1}`, true},
		{`{"a":1e2}`, `{"a":100}`, true},
		{`{"a":0.1}`, `{"a":0.10000000000000001}`, false},
		{`{"a":12345678901234567890}`, `{"a":12345678901234567891}`, false},
		{`{"a":1e999999999}`, `{"a":1e999999998}`, false},
		{`{"a":"1"}`, `{"a":1}`, false},
		{`{"a":null}`, `{}`, false},
		{`{"a":[1,2]}`, `{"a":[2,1]}`, false},
		{`{"a":1} {}`, `{"a":1}`, false},
		{`{"a":1`, `{"a":1}`, false},
		{"", `{}`, false},
		{`{"a":"\u00e9"}`, `{"a":"é"}`, true},
	} {
		if got := sameJSON([]byte(c.a), []byte(c.b)); got != c.want {
			t.Errorf("%s and %s: same is %t, want %t", c.a, c.b, got, c.want)
		}
		if got := sameJSON([]byte(c.b), []byte(c.a)); got != c.want {
			t.Errorf("%s and %s: same is %t, want %t", c.b, c.a, got, c.want)
		}
	}
	if got, want := differing([]byte(`{"a":1,"b":2,"c":3}`), []byte(`{"a":1.0,"b":3,"d":3}`)), []string{"b", "c", "d"}; !slices.Equal(got, want) {
		t.Errorf("differing fields: got %v, want %v", got, want)
	}
}

func TestJudge(t *testing.T) {
	t.Parallel()
	row := projections.Wanted{Found: true, Version: 5, Document: []byte(`{"a":1}`)}
	unversioned := projections.Wanted{Found: true, Document: []byte(`{"a":1}`)}
	held := func(version int64, document string) *projections.Held {
		return &projections.Held{Version: version, Document: []byte(document)}
	}
	for name, c := range map[string]struct {
		wanted       projections.Wanted
		held         *projections.Held
		versionsOnly bool
		want         Kind
	}{
		"neither":                        {want: Equal},
		"row alone":                      {wanted: row, want: Missing},
		"document alone":                 {held: held(5, `{"a":1}`), want: Extra},
		"document of another place":      {wanted: projections.Wanted{Elsewhere: true}, held: held(5, `{"a":1}`), want: Misplaced},
		"equal":                          {wanted: row, held: held(5, `{"a": 1}`), want: Equal},
		"older":                          {wanted: row, held: held(4, `{"a":1}`), want: Stale},
		"newer":                          {wanted: row, held: held(6, `{"a":1}`), want: Ahead},
		"other content":                  {wanted: row, held: held(5, `{"a":2}`), want: Corrupt},
		"other content, versions alone":  {wanted: row, held: held(5, `{"a":2}`), versionsOnly: true, want: Equal},
		"no version, equal":              {wanted: unversioned, held: held(9, `{"a":1}`), want: Equal},
		"no version, other content":      {wanted: unversioned, held: held(9, `{"a":2}`), want: Corrupt},
		"row without a version alone":    {wanted: projections.Wanted{Unnumbered: true}, want: Missing},
		"row without a version":          {wanted: projections.Wanted{Unnumbered: true}, held: held(5, `{"a":1}`), want: Stale},
		"row that says it is deleted":    {wanted: projections.Wanted{Version: 5}, held: held(4, `{"a":1}`), want: Extra},
		"older in spite of equal fields": {wanted: row, held: held(1, `{"a":1}`), versionsOnly: true, want: Stale},
	} {
		if got := judge(c.wanted, c.held, c.versionsOnly); got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}
