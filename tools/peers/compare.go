package main

import (
	"encoding/json"
	"fmt"
	"math/big"
	"strconv"
	"strings"
	"time"
)

// row is a row of the table item.
type row struct {
	id          int64
	title, body string
	price       string // as PostgreSQL writes a numeric
	updatedAt   time.Time
}

// document is what a peer made of a row. Some add fields of their own, which do not count.
type document struct {
	Title     string      `json:"title"`
	Body      string      `json:"body"`
	Price     json.Number `json:"price"`
	UpdatedAt string      `json:"updated_at"`
	// UpdatedAtToo is the name that a property of Java has.
	UpdatedAtToo string `json:"updatedAt"`
}

// wrong counts the documents that are not what their rows are.
type wrong struct {
	Missing   int    `json:"missing"`
	Surplus   int    `json:"surplus"`
	Different int    `json:"different"`
	Example   string `json:"example,omitempty"`
}

func (w wrong) total() int { return w.Missing + w.Surplus + w.Different }

// compare compares each document with its row. It consumes docs.
func compare(rows []row, docs map[string]document) (w wrong) {
	for _, r := range rows {
		id := strconv.FormatInt(r.id, 10)
		doc, ok := docs[id]
		delete(docs, id)
		if !ok {
			w.Missing++
			w.Example = "no document of row " + id
			continue
		}
		if field, err := differs(r, doc); field != "" {
			w.Different++
			w.Example = fmt.Sprintf("document %s: %s", id, field)
			if err != nil {
				w.Example += ": " + err.Error()
			}
		}
	}
	w.Surplus = len(docs)
	for id := range docs {
		w.Example = "no row of document " + id
	}
	return w
}

// differs returns the first field in which a document is not what its row is.
func differs(r row, doc document) (field string, err error) {
	stamp := doc.UpdatedAt + doc.UpdatedAtToo
	at, err := time.Parse(time.RFC3339Nano, stamp)
	if err != nil {
		return "updated_at", err
	}
	want, wantOK := new(big.Rat).SetString(r.price)
	got, gotOK := new(big.Rat).SetString(strings.TrimSpace(doc.Price.String()))
	switch {
	case doc.Title != r.title:
		return "title", nil
	case doc.Body != r.body:
		return "body", nil
	case !wantOK || !gotOK || want.Cmp(got) != 0:
		return "price", nil
	case !at.Equal(r.updatedAt):
		return "updated_at", nil
	}
	return "", nil
}
