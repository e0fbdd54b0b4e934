// Package shop holds the files of the example, for programs that run on its tables.
package shop

import "embed"

// Files are the tables and the declaration.
//
//go:embed schema.sql weft.yaml products.mapping.json products.settings.json
var Files embed.FS
