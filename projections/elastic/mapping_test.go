package elastic

import (
	"errors"
	"strings"
	"testing"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/outbox"
)

func TestCompareMappings(t *testing.T) {
	t.Parallel()
	const have = `{"dynamic":"strict","_routing":{"required":true},"properties":{"name":{"type":"text","fields":{"raw":{"type":"keyword","ignore_above":100}}},
		"price":{"type":"double"},"sizes":{"properties":{"sku":{"type":"keyword"}}},"tags":{"type":"nested","properties":{"t":{"type":"keyword"}}}}}`
	for _, tt := range []struct{ name, want, added, conflicts string }{
		{"Same", have, "", ""},
		{"OtherOrderAndFewerFields", `{"properties":{"price":{"type":"double"}}}`, "", ""},
		{"NewFields", `{"properties":{"color":{"type":"keyword"},"sizes":{"type":"object","properties":{"width":{"type":"long"}}},
			"name":{"type":"text","fields":{"raw":{"type":"keyword"},"exact":{"type":"keyword"}}}}}`, "color, name.exact, sizes.width", ""},
		{"OtherType", `{"properties":{"price":{"type":"scaled_float","scaling_factor":100}}}`, "", "field price has type double, and is to have scaled_float"},
		{"Spelled", `{"properties":{"name":{"type":"text","index":true,"analyzer":"default"}}}`, "", ""},
		{"TypeIsTakenBack", `{"properties":{"tags":{"properties":{"t":{"type":"keyword"}}}}}`, "", "field tags has type nested, and is to have object"},
		{"Deep", `{"properties":{"sizes":{"properties":{"sku":{"type":"long"}}}}}`, "", "field sizes.sku has type keyword, and is to have long"},
		{"ObjectOfAField", `{"properties":{"price":{"properties":{"net":{"type":"double"}}}}}`, "price.net", "field price has type double, and is to have object"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			added, conflicts, err := CompareMappings([]byte(have), []byte(tt.want))
			if got := strings.Join(added, ", "); err != nil || got != tt.added {
				t.Errorf("added %q, %v, want %q", got, err, tt.added)
			}
			if got := strings.Join(conflicts, "; "); got != tt.conflicts {
				t.Errorf("conflicts %q, want %q", got, tt.conflicts)
			}
		})
	}
	if _, _, err := CompareMappings([]byte("["), []byte("{}")); err == nil {
		t.Error("no error for a mapping that is no object")
	}
}

// Elasticsearch does not show a parameter that has its default: a mapping file that spells one out gets its
// new fields all the same. What the index cannot take is refused with Elasticsearch's reason.
func TestRealMappingThatSpellsDefaults(t *testing.T) {
	t.Parallel()
	index := testenv.Index(t)
	build := func(fields string) *Sink {
		s, _ := newSink(t, Config{URLs: []string{testenv.ElasticURL(t)}, Index: index,
			Mapping: []byte(`{"dynamic":"strict","_source":{"enabled":true},"properties":{` + fields + `}}`)})
		return s
	}
	const first = `"sku":{"type":"keyword","index":true,"doc_values":true},"at":{"type":"date","format":"strict_date_optional_time||epoch_millis"},"box":{"type":"object","enabled":true}`
	if err := build(first).EnsureIndex(t.Context()); err != nil {
		t.Fatal(err)
	}
	more := build(first + `,"color":{"type":"keyword"}`)
	if err := more.EnsureIndex(t.Context()); err != nil {
		t.Fatal(err)
	}
	at, have, err := more.present(t.Context())
	if err != nil || !strings.Contains(string(have), "color") || !MadeFor(have, more.cfg.Mapping) {
		t.Errorf("index %s has %s, %v", at.index, have, err)
	}
	other := build(strings.Replace(first, "strict_date_optional_time||epoch_millis", "yyyy", 1))
	err = other.EnsureIndex(t.Context())
	if !errors.Is(err, ErrMapping) || !strings.Contains(err.Error(), "Mapper for [at] conflicts with existing mapper: Cannot update parameter [format]") {
		t.Errorf("got %v, want ErrMapping with the reason", err)
	}
	if MadeFor(have, other.cfg.Mapping) {
		t.Error("the index counts as made for a mapping that it does not take")
	}
}

// While an index of another mapping is filled, the one that is in use takes the fields that are new, those
// within objects included.
func TestRealFieldsAreAddedWithinObjects(t *testing.T) {
	t.Parallel()
	index := testenv.Index(t)
	build := func(number, inner string) *Sink {
		s, _ := newSink(t, Config{URLs: []string{testenv.ElasticURL(t)}, Index: index, Mapping: []byte(`{"dynamic":"strict","properties":{"number":{"type":"` + number + `"},
			"author":{"properties":{"name":{"type":"text"}` + inner + `}},"sizes":{"type":"nested","properties":{"sku":{"type":"keyword"}` + inner + `}}}}`)})
		return s
	}
	if err := build("long", "").EnsureIndex(t.Context()); err != nil {
		t.Fatal(err)
	}
	next := build("keyword", `,"more":{"properties":{"color":{"type":"keyword"}}}`)
	next.Rebuilding(true)
	if err := next.AddFields(t.Context()); err != nil {
		t.Fatal(err)
	}
	const doc = `{"number":7,"author":{"name":"a","more":{"color":"red"}},"sizes":[{"sku":"b","more":{"color":"blue"}}]}`
	got, err := next.Write(leading(t), []Action{{ID: "a", Version: 1, Body: []byte(doc)}})
	if err != nil || got[0].Verdict != outbox.Done {
		t.Errorf("got %+v, %v, want a document with the new fields", got, err)
	}
	if err := next.AddFields(t.Context()); err != nil {
		t.Errorf("once more: %v", err)
	}
}
