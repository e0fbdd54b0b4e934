package demo

import "strings"

// goneLibrary is deprecated as a whole: a fitting one to delete.
const goneLibrary = "io/ioutil"

// updatedSymbols get a new text at the end.
func updatedSymbols() []string {
	return []string{"context.WithCancel", "context.WithTimeout", "sync.WaitGroup", "net/http.Client.Do"}
}

// pinnedDocuments are those that only the demo itself edits.
type pinnedDocuments struct{ updated, deleted []Document }

// split takes the documents that are edited by name from those of the stream.
func split(docs []Document) (p pinnedDocuments, everyday []Document) {
	names := map[string]bool{}
	for _, s := range updatedSymbols() {
		names[s] = true
	}
	for _, d := range docs {
		switch {
		case names[d.Symbol]:
			p.updated = append(p.updated, d)
		case d.Symbol == goneLibrary, strings.HasPrefix(d.Symbol, goneLibrary+"."):
			p.deleted = append(p.deleted, d)
		default:
			everyday = append(everyday, d)
		}
	}
	return p, everyday
}
