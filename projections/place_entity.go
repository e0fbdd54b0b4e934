package projections

import (
	"encoding/hex"
	"net/url"
	"strings"

	"github.com/samuelhu324-dev/weft/outbox"
	"github.com/samuelhu324-dev/weft/projections/elastic"
)

// entity returns the entity that a document is of, without its type unless the document's id
// tells it; a zero one when no entity has such a document. It is not ours when another projection
// may have written it, and when its id is a hash, which tells nothing.
func (n *naming) entity(d elastic.Doc) (key outbox.Key, ours bool) {
	if !strings.HasPrefix(d.ID, n.template.prefix()) || isHashed(d.ID) {
		return outbox.Key{}, false
	}
	parts, ok := n.read(d)
	if !ok || strings.Contains(d.ID+d.Routing, "\x00") { // which no text of PostgreSQL holds
		return outbox.Key{}, true
	}
	if n.key.composite() {
		key.ID = outbox.Composite(parts...)
	} else {
		var err error
		if key.ID, err = outbox.ParseID(n.key.kind, parts[len(parts)-1]); err != nil {
			return outbox.Key{}, true
		}
	}
	if n.key.typed {
		key.Type = parts[0]
	}
	if n.key.valid(key.ID) != nil || n.doc(key).ID != d.ID { // as 007 for 7
		return outbox.Key{}, true
	}
	return key, true
}

// read returns the parts of a place in the id and the routing of a document.
func (n *naming) read(d elastic.Doc) ([]string, bool) {
	if n.template == nil && n.key.typed {
		at := strings.LastIndexByte(d.ID, ':')
		if at < 0 {
			return nil, false
		}
		return []string{d.ID[:at], d.ID[at+1:]}, true
	}
	if n.template == nil {
		parts := []string{d.ID}
		if len(n.key.columns) > 1 {
			parts = outbox.Text(d.ID).Parts()
		}
		if n.key.placed {
			parts = append([]string{d.Routing}, parts...)
		}
		return parts, true
	}
	parts := make([]string, len(n.key.columns))
	if n.key.placed {
		parts = append([]string{d.Routing}, parts...)
	}
	rest := d.ID
	for i, p := range n.template {
		if p.name == "" {
			var ok bool
			if rest, ok = strings.CutPrefix(rest, p.text); !ok {
				return nil, false
			}
			continue
		}
		end := len(rest)
		if i+1 < len(n.template) {
			next := n.template[i+1].text
			if end = strings.Index(rest, next); i+2 == len(n.template) {
				end = strings.LastIndex(rest, next)
			}
			if end < 0 {
				return nil, false
			}
		}
		value := rest[:end]
		if p.escape != "" {
			var err error
			if value, err = url.PathUnescape(value); err != nil {
				return nil, false
			}
		}
		parts[p.part], rest = value, rest[end:]
	}
	return parts, rest == ""
}

// isHashed reports whether an id may be one that hashed has cut.
func isHashed(id string) bool {
	if len(id) < shortestHashed {
		return false
	}
	tail := id[len(id)-hashSize-1:]
	_, err := hex.DecodeString(tail[1:])
	return tail[0] == '~' && err == nil
}
