package postgres

import (
	"net/url"
	"strings"
)

// InSchema returns the address of a database, as [ParseURL] reads it, with a search_path of one
// schema, whose name is given as SQL has it.
func InSchema(raw, schema string) (string, error) {
	norm, err := Normalize(raw)
	if err != nil {
		return "", err
	}
	if !strings.HasPrefix(norm, "postgres://") {
		return norm + " search_path='" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(schema) + "'", nil // the last of two wins
	}
	target, query, _ := strings.Cut(norm, "?")
	params, err := url.ParseQuery(strings.ReplaceAll(query, "+", "%2B")) // which is no space there
	if err != nil {
		return "", errURL
	}
	params.Set("search_path", schema)
	return target + "?" + strings.ReplaceAll(params.Encode(), "+", "%20"), nil
}
