package main

import (
	"encoding/json"
	"io"
)

// show prints v as JSON, or by table for a person.
func (a *app) show(asJSON bool, v any, table func(io.Writer) error) error {
	if asJSON {
		return a.json(v)
	}
	return table(a.stdout)
}

func (a *app) json(v any) error {
	enc := json.NewEncoder(a.stdout)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}
