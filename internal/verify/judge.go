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
	Stale     Kind = "stale"     // the document is older than its row
	Ahead     Kind = "ahead"     // the document is newer than its row
	Corrupt   Kind = "corrupt"   // of one version, with other content
	Misplaced Kind = "misplaced" // on a shard where nobody looks for it
)

// judge compares what the pipeline would write of an entity with what there is of it, which
// is more than one document when some are misplaced.
func judge(w projections.Wanted, held []projections.Held, byVersion bool) (Kind, *projections.Held) {
	var here *projections.Held
	for i := range held {
		if held[i].Misplaced {
			return Misplaced, &held[i]
		}
		here = &held[i]
	}
	switch {
	case here == nil && w.Found:
		return Missing, nil
	case here == nil:
		return Equal, nil
	case !w.Found:
		return Extra, here
	case w.Version > 0 && here.Version < w.Version:
		return Stale, here
	case w.Version > 0 && here.Version > w.Version:
		return Ahead, here
	case !byVersion && !sameJSON(w.Document, here.Document):
		return Corrupt, here
	default:
		return Equal, here
	}
}
