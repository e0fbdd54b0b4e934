package postgres

import (
	"net/url"
	"strings"
)

// InSchema returns the address of a database, as [ParseURL] reads it, with a search_path of one
// schema. The name of the schema needs no quotes.
func InSchema(raw, schema string) (string, error) {
	norm, err := Normalize(raw)
	if err != nil {
		return "", err
	}
	if !strings.HasPrefix(norm, "postgres://") {
		return norm + " search_path=" + schema, nil // the last of two wins
	}
	target, query, _ := strings.Cut(norm, "?")
	params, err := url.ParseQuery(query)
	if err != nil {
		return "", errURL
	}
	params.Set("search_path", schema)
	return target + "?" + params.Encode(), nil
}
