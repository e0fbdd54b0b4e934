// Package shop holds the files of the example, for programs that run on its tables.
//
// # What is guaranteed
//
//   - The files are those that the page beside them runs.
//
// # What is not guaranteed
//
//   - The tables may change with the example.
package shop

import "embed"

// Files are the tables and the declaration.
//
//go:embed schema.sql weft.yaml products.mapping.json products.settings.json
var Files embed.FS
