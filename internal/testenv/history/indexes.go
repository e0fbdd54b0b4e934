package history

import (
	"slices"
	"strings"
)

// beside is what the aliases end with by which a rebuild writes to a new index.
const beside = "-writes"

// live returns the items that decided the fate of events: not those of rebuilds.
func (r *Run) live() []Applied {
	if r.Alias == "" {
		return r.Applied
	}
	return slices.DeleteFunc(slices.Clone(r.Applied), func(a Applied) bool { return a.Target != r.Alias })
}

// byIndex returns the items of each index, all of them under one name where there is one index. An
// item by the alias without an answer may have reached any index that the alias led to.
func (r *Run) byIndex() map[string][]Applied {
	if r.Alias == "" {
		return map[string][]Applied{r.Index: r.Applied}
	}
	out, led := map[string][]Applied{}, map[string]bool{}
	var unknown []Applied
	for _, a := range r.Applied {
		switch {
		case a.Index != "":
			out[a.Index] = append(out[a.Index], a)
			led[a.Index] = led[a.Index] || a.Target == r.Alias
		case a.Target == r.Alias:
			unknown = append(unknown, a)
		default:
			index := strings.TrimSuffix(a.Target, beside)
			out[index] = append(out[index], a)
		}
	}
	for index := range led {
		out[index] = append(out[index], unknown...)
	}
	return out
}
