package verify

import (
	"github.com/samuelhu324-dev/weft/projections"
)

// Kind says how a document differs from its row.
type Kind string

// The kinds.
const (
	Equal     Kind = ""
	Missing   Kind = "missing"   // there is a row, and no document
	Extra     Kind = "extra"     // there is a document, and no row
	Stale     Kind = "stale"     // the document is older than its row, or the row has no version yet
	Ahead     Kind = "ahead"     // the document is newer than its row
	Corrupt   Kind = "corrupt"   // of one version, with other content
	Misplaced Kind = "misplaced" // on a shard where nobody looks for it
)

// judge compares what the pipeline would write of an entity with what there is of it, if
// anything.
func judge(w projections.Wanted, here *projections.Held, byVersion bool) Kind {
	switch {
	case here == nil && (w.Found || w.Unnumbered):
		return Missing
	case here == nil:
		return Equal
	case !w.Found && w.Elsewhere:
		return Misplaced
	case !w.Found && w.Unnumbered:
		return Stale
	case !w.Found:
		return Extra
	case w.Version > 0 && here.Version < w.Version:
		return Stale
	case w.Version > 0 && here.Version > w.Version:
		return Ahead
	case !byVersion && !sameJSON(w.Document, here.Document):
		return Corrupt
	default:
		return Equal
	}
}
