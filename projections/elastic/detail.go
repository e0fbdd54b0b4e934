package elastic

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/samuelhu324-dev/weft/outbox"
)

// maxDetail is the longest detail in characters.
const maxDetail = 500

// cause is an error object of Elasticsearch.
type cause struct {
	Type     string `json:"type"`
	Reason   string `json:"reason"`
	CausedBy *cause `json:"caused_by"`
	Index    string `json:"index"` // that it is about, if it is about one

	RootCause []cause `json:"root_cause"` // of a whole request

	// Credentials says why a key or token was not taken, as "API key: api key is expired": a text, or several.
	Credentials any `json:"additional_unsuccessful_credentials"`
}

// parseCause reads the error of an item; raw may be nil or not an object.
func parseCause(raw []byte) cause {
	var c cause
	if len(raw) == 0 {
		return c
	}
	if err := json.Unmarshal(raw, &c); err != nil {
		var s string
		if json.Unmarshal(raw, &s) == nil {
			return cause{Reason: s}
		}
		return cause{Type: "unreadable error"}
	}
	return c
}

// parseWhole reads the body of an answer that is not 2xx. It leaves out a proxy's page.
func parseWhole(body []byte) cause {
	var whole struct {
		Error json.RawMessage `json:"error"`
	}
	if json.Unmarshal(body, &whole) != nil {
		return cause{}
	}
	c := parseCause(whole.Error)
	if c.CausedBy == nil && len(c.RootCause) > 0 && c.RootCause[0].Type != c.Type { // as of "all shards failed"
		c.CausedBy = &c.RootCause[0]
	}
	return c
}

// Said returns what the body of a refusal says, on one line.
func Said(status int, body []byte) string {
	c := parseWhole(body)
	return c.detail(status)
}

// root returns the reason that the others were caused by.
func (c *cause) root() string {
	for c.CausedBy != nil && c.CausedBy.Reason != "" {
		c = c.CausedBy
	}
	return outbox.OneLine(c.Reason, maxDetail)
}

func (c *cause) has(s string) bool { return strings.Contains(c.Reason, s) }

// unrouted reports whether an index that requires a routing was asked for a document without one, which it cannot have.
func (c *cause) unrouted() bool { return c != nil && c.Type == "routing_missing_exception" }

// heldVersion reads the document's version from the reason of a version conflict:
// "…, current version [12] is higher than the one provided [5]". 0 when it is not there.
func (c *cause) heldVersion() int64 {
	const before = "current version ["
	at := strings.LastIndex(c.Reason, before) // the id stands in front of it, whatever it holds
	if at < 0 {
		return 0
	}
	digits, _, _ := strings.Cut(c.Reason[at+len(before):], "]")
	v, err := strconv.ParseInt(digits, 10, 64)
	if err != nil {
		return 0
	}
	return v
}

// lacksPipeline reports whether an error says that there is no ingest pipeline of a name.
func (c *cause) lacksPipeline() bool {
	return (strings.HasPrefix(c.Reason, "pipeline with id [") || strings.HasPrefix(c.Reason, "pipeline [")) && strings.HasSuffix(c.Reason, "] does not exist")
}

// blocked reports whether an error is a block that somebody has set on the index or the cluster.
func (c *cause) blocked() bool {
	return c.Type == "cluster_block_exception" || c.Type == "index_create_block_exception" // of OpenSearch 3
}

// floodStage reports whether an error is the block of a full disk, which has several names.
func (c *cause) floodStage() bool {
	return c.has("read-only-allow-delete") || c.has("read-only / allow delete") || c.has("flood-stage")
}

// requestQuery finds the query that a refusal to log in repeats: it is long, and stands before the remedy.
var requestQuery = regexp.MustCompile(`(for REST request \[[^?\]]*)\?[^\]]*`)

// detail returns the types and reasons of c on one line of at most maxDetail characters. It
// leaves out all text of the document.
func (c *cause) detail(status int) string {
	var b strings.Builder
	b.WriteString("status ")
	b.WriteString(strconv.Itoa(status))
	for depth, e := 0, c; e != nil && depth < 4; depth, e = depth+1, e.CausedBy {
		if e.Type != "" {
			b.WriteString(": ")
			b.WriteString(e.Type)
		}
		reason := requestQuery.ReplaceAllString(quotedValue.ReplaceAllString(cutQuote(e.Reason), "$1 […]"), "$1")
		if depth > 0 {
			reason = mask(reason) // inner reasons quote the value that did not fit
		}
		if reason != "" {
			b.WriteString(": ")
			b.WriteString(reason)
		}
		if e.Credentials != nil {
			several, ok := e.Credentials.([]any)
			if !ok {
				several = []any{e.Credentials}
			}
			said := make([]string, len(several))
			for i, one := range several {
				said[i] = fmt.Sprint(one)
			}
			fmt.Fprintf(&b, " (%s)", strings.Join(said, "; "))
		}
	}
	return outbox.OneLine(b.String(), maxDetail)
}

// quotedValue is a value of the document, with the words before it, in a reason that goes on behind it.
var quotedValue = regexp.MustCompile(`(Numeric value|min value|max value|longitude value|latitude value|but was|unknown field name) ?[(\[][^)\]]*[)\]]`)

// cutQuote cuts a reason where Elasticsearch begins to quote the document.
func cutQuote(s string) string {
	for _, words := range []string{"Preview of field's value", "original message", "prefix of the first immense term", "For input string", "number found", "featureValue must be", "[Source:", "request: "} {
		if i := strings.Index(s, words); i >= 0 {
			s = s[:i]
		}
	}
	return strings.TrimRight(s, " .,:;(\n")
}

// mask replaces the text in brackets or quotes, unless it is the name of a field type or a
// number that is not finite.
func mask(s string) string {
	var b strings.Builder
	for {
		i := strings.IndexAny(s, "[\"'")
		if i < 0 {
			b.WriteString(s)
			return b.String()
		}
		open, closing := s[i], s[i]
		if open == '[' {
			closing = ']'
		}
		b.WriteString(s[:i])
		end := strings.LastIndexByte(s, closing) // the value may hold the same sign
		if next := strings.IndexByte(s[i+1:], closing); next >= 0 && harmless(s[i+1:i+1+next]) {
			end = i + 1 + next
			b.WriteString(s[i : end+1])
		} else {
			b.WriteByte(open)
			b.WriteString("…")
			b.WriteByte(closing)
			if end <= i {
				return b.String()
			}
		}
		s = s[end+1:]
	}
}

func harmless(s string) bool {
	switch s {
	case "float", "double", "half_float", "long", "integer", "short", "byte", "date", "boolean", "keyword", "text",
		"Infinity", "-Infinity", "NaN":
		return true
	default:
		return false
	}
}
