package verify

import (
	"github.com/samuelhu324-dev/weft/outbox"
	"github.com/samuelhu324-dev/weft/projections"
)

// order is what mends a document.
func order(k outbox.Key, at sight) outbox.Order {
	o := outbox.Order{Key: k, Op: outbox.Upsert, Version: at.wanted.Version}
	if at.here != nil {
		o.Held = at.here.Version
	}
	if !at.wanted.Found && !at.wanted.Unnumbered {
		o.Op, o.Version = outbox.Delete, max(o.Version, o.Held)
	}
	return o
}

// remedy says what to do where no event helps; it is empty where one does.
func (v *verifier) remedy(at sight) string {
	if at.kind == Ahead && !v.Events.OwnsVersions() {
		return "raise the version of its row above that of the document, or delete the document"
	}
	return ""
}

func (v *verifier) example(k outbox.Key, at sight) Example {
	e := Example{Kind: at.kind, Entity: k.String(), RowVersion: at.wanted.Version, Unnumbered: at.wanted.Unnumbered, Remedy: v.remedy(at)}
	if at.here != nil {
		e.Document, e.DocumentVersion = at.here.ID, at.here.Version
	}
	if v.Fields && at.kind == Corrupt {
		e.Fields = differing(at.wanted.Document, at.here.Document)
	}
	return e
}

// stranger is a document that no event can name: weft has not written it.
func stranger(h projections.Held) Example {
	if h.Stray != "" {
		return Example{Kind: Misplaced, Entity: h.Key.String(), Document: h.ID, DocumentVersion: h.Version, Remedy: h.Stray}
	}
	return Example{Kind: Extra, Document: h.ID, DocumentVersion: h.Version, Remedy: "no entity has such an id: delete the document"}
}

// ordered is what the audit keeps of a repair.
type ordered struct {
	Entities []string `json:"entities"` // the first few
}

func detailOf(orders []outbox.Order) ordered {
	var d ordered
	for _, o := range orders[:min(len(orders), examplesOfKind)] {
		d.Entities = append(d.Entities, o.Key.String())
	}
	return d
}
