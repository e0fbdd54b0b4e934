package stack

import (
	"fmt"

	"github.com/spf13/pflag"
)

// Versions choose other servers than the default ones; those of the search server exclude
// each other.
type Versions struct {
	PostgresMajor                     int
	ElasticVersion, OpenSearchVersion string
}

// AddFlags adds the flags that choose them.
func (v *Versions) AddFlags(f *pflag.FlagSet) {
	f.IntVar(&v.PostgresMajor, "postgres", 0, fmt.Sprintf("major version of PostgreSQL: 14 to 18 (default %d)", defaultPostgres))
	f.StringVar(&v.ElasticVersion, "elastic", "", "version of Elasticsearch: 8.19.7 or 9.2.0 (default "+DefaultElastic+")")
	f.StringVar(&v.OpenSearchVersion, "opensearch", "", "start OpenSearch instead, 2.19.3 or 3.3.0")
}
