// Package shop holds the files of the example, for programs that run on its tables.
//
// # What is guaranteed
//
//   - They are those that README.md uses, and a test runs that page.
//
// # What is not guaranteed
//
//   - An outbox: `weft outbox create` makes it.
package shop

import "embed"

// Files are the tables and the declaration.
//
//go:embed schema.sql weft.yaml products.mapping.json products.settings.json
var Files embed.FS
