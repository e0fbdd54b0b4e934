package elastic

import (
	"strings"
	"testing"
)

func TestCompareMappings(t *testing.T) {
	t.Parallel()
	const have = `{"dynamic":"strict","_routing":{"required":true},"properties":{"name":{"type":"text","fields":{"raw":{"type":"keyword","ignore_above":100}}},
		"price":{"type":"double"},"sizes":{"properties":{"sku":{"type":"keyword"}}},"tags":{"type":"nested","properties":{"t":{"type":"keyword"}}}}}`
	for _, tt := range []struct{ name, want, added, conflicts string }{
		{"Same", have, "", ""},
		{"OtherOrderAndFewerFields", `{"_routing":{"required":true},"properties":{"price":{"type":"double"}}}`, "", ""},
		{"NewFields", `{"_routing":{"required":"true"},"properties":{"color":{"type":"keyword"},"sizes":{"type":"object","properties":{"width":{"type":"long"}}},
			"name":{"type":"text","fields":{"raw":{"type":"keyword","ignore_above":50},"exact":{"type":"keyword"}}}}}`, "color, name.exact, sizes.width", ""},
		{"OtherType", `{"_routing":{"required":true},"properties":{"price":{"type":"scaled_float","scaling_factor":100}}}`, "",
			"field price has scaling_factor none, and is to have 100; field price has type double, and is to have scaled_float"},
		{"OtherAnalyzer", `{"_routing":{"required":true},"properties":{"name":{"type":"text","analyzer":"english"}}}`, "", "field name has analyzer none, and is to have english"},
		{"ParameterIsTakenBack", `{"_routing":{"required":true},"properties":{"tags":{"properties":{"t":{"type":"keyword"}}}}}`, "", "field tags has type nested, and is to have object"},
		{"Deep", `{"_routing":{"required":true},"properties":{"sizes":{"properties":{"sku":{"type":"long"}}}}}`, "", "field sizes.sku has type keyword, and is to have long"},
		{"ObjectOfAField", `{"_routing":{"required":true},"properties":{"price":{"properties":{"net":{"type":"double"}}}}}`, "price.net", "field price has type double, and is to have object"},
		{"Routing", `{"_routing":{"required":false}}`, "", "_routing is {required: true}, and is to be {required: false}"},
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
