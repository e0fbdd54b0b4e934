package history

import (
	"strings"
	"time"

	"github.com/samuelhu324-dev/weft/outbox"
)

// Operations of a bulk item.
const (
	Index  = "index"
	Delete = "delete"
)

// Applied is one item of a bulk request, recorded by a proxy before Elasticsearch: the
// request, and the answer of Elasticsearch itself, even where the client got another one.
type Applied struct {
	Request  int64 // the bulk request that it was part of
	Instance string
	// Between these Elasticsearch decided about it. Both are of one process and carry
	// its monotonic clock. Answered is zero when no answer came.
	Sent, Answered time.Time
	Op             string // [Index] or [Delete]
	ID             string // of the document; after the routing and a colon, where there is one
	// Document is what it writes to, where that is not known by ID alone: ids that differ in the
	// routing are one document when they meet on one shard.
	Document string
	Target   string // name that the request was sent to: an alias, or an index
	Version  int64  // asked for
	// The answer; zero where there was none.
	Index         string // that has taken it
	Status        int
	Result        string // created, updated, deleted, not_found; empty for an error
	SeqNo         int64
	PrimaryTerm   int64
	ResultVersion int64
	Forwarded     bool // false: Elasticsearch never got it
	Known         bool // false: the answer never came, so it may have been applied or not
}

// wrote reports whether Elasticsearch confirmed a's effect; a delete of a document that
// is not there is one, it leaves its version behind.
func (a *Applied) wrote() bool { return a.Forwarded && a.Known && a.Status < 500 && a.Result != "" }

// refused reports whether Elasticsearch has something newer.
func (a *Applied) refused() bool { return a.Forwarded && a.Known && a.Status == 409 }

// doubtful reports whether nobody knows if a had an effect: no answer, or one by which
// the server says that something broke in it.
func (a *Applied) doubtful() bool { return a.Forwarded && (!a.Known || a.Status >= 500) }

// key returns the entity of a's document.
func (a *Applied) key() outbox.Key { return keyOf(a.ID) }

// keyOf undoes outbox.Key.String. A document of another name gets it as its type.
func keyOf(document string) outbox.Key {
	typ, text, _ := strings.Cut(document, ":")
	var id outbox.ID
	if err := id.UnmarshalText([]byte(text)); err != nil || id.IsZero() {
		return outbox.Key{Type: document}
	}
	return outbox.Key{Type: typ, ID: id}
}
