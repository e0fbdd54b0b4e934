package elastic

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"strconv"
	"strings"

	"github.com/elastic/go-elasticsearch/v8/esapi"
)

// Product is a search server that weft writes to. This file holds everything in which the
// two differ for weft:
//
//	                          Elasticsearch                    OpenSearch
//	says who it is            X-Elastic-Product, each answer   version.distribution of GET /
//	an answer of its own      has that header                  JSON of the shape that belongs to the request
//	what credentials may do   _has_privileges                  cannot be asked
//
// Versions, errors, bulk requests, aliases, templates and statistics are alike.
type Product string

// The values of Config.Product.
const (
	Auto          Product = "auto" // as the server says; the zero value means it, too
	Elasticsearch Product = "elasticsearch"
	OpenSearch    Product = "opensearch"
)

// oldest returns the first version of a product that weft runs on: Elasticsearch before 8 does not
// name itself in each answer, and weft was never run on OpenSearch before 2.4.
func (p Product) oldest() (major, minor int) {
	if p == OpenSearch {
		return 2, 4
	}
	return 8, 0
}

func (p Product) name() string {
	if p == OpenSearch {
		return "OpenSearch"
	}
	return "Elasticsearch"
}

// ErrVersion means that the server is older than weft needs.
var ErrVersion = errors.New("the server is too old")

// CheckVersion returns an [ErrVersion] for a version that is too old. One that is not a number, as
// of a build from source, passes.
func (p Product) CheckVersion(version string) error {
	first, rest, _ := strings.Cut(version, ".")
	second, _, _ := strings.Cut(rest, ".")
	major, err := strconv.Atoi(first)
	if err != nil {
		return nil
	}
	minor, _ := strconv.Atoi(second)
	wantMajor, wantMinor := p.oldest()
	if major > wantMajor || major == wantMajor && minor >= wantMinor {
		return nil
	}
	return fmt.Errorf("%w: %s %s, and weft needs %d.%d or newer; upgrade it", ErrVersion, p.name(), version, wantMajor, wantMinor)
}

// root is the answer to GET /.
type root struct {
	Version struct {
		Distribution string `json:"distribution"`
		Number       string `json:"number"`
	} `json:"version"`
}

// product returns the product of the server and asks for it when it is not known. It is empty
// when the server does not say, as one that asks who weft is: the answer to the next request tells why.
// A 5xx is asked again, since it says nothing of the version.
func (s *Sink) product(ctx context.Context) (Product, error) {
	if p, ok := s.known.Load().(Product); ok && p != "" {
		return p, nil
	}
	res, err := esapi.InfoRequest{}.Do(ctx, nodes{s.client, len(s.cfg.URLs)})
	if err != nil {
		s.dropIdle()
		return "", err
	}
	body, err := s.answerOf(res, maxPlain)
	if err != nil {
		return "", err
	}
	var (
		said    Product
		version string
		info    root
	)
	if res.StatusCode == http.StatusOK && json.Unmarshal(body, &info) == nil {
		version = info.Version.Number
	}
	switch {
	case named(res.Header):
		said = Elasticsearch
	case info.Version.Distribution == string(OpenSearch):
		said = OpenSearch
	case s.cfg.Product == Auto:
		if version != "" {
			return "", fmt.Errorf("%w; GET / names version %q and no distribution: set elastic.product if the server hides it, as with Amazon's compatibility mode", ErrProduct, version)
		}
		return "", nil
	default: // GET / may be forbidden, or answer for a version that the server imitates
		said, version = s.cfg.Product, ""
	}
	if s.cfg.Product != Auto && s.cfg.Product != said {
		return "", fmt.Errorf("%w: elastic.product is %s, and the server at %s is %s; correct one of them", ErrProduct, s.cfg.Product, s.host(), said.name())
	}
	if err := said.CheckVersion(version); err != nil {
		return "", err
	}
	if res.StatusCode < http.StatusInternalServerError {
		s.known.Store(said)
	}
	return said, nil
}

// ErrProduct means that something other than the configured search server has answered, as a proxy does.
var ErrProduct = errors.New("the answer is not one of Elasticsearch (no X-Elastic-Product header) or OpenSearch")

// genuine returns an error for a 2xx answer of another sender, which does not confirm a write. key is
// what an answer of OpenSearch has to hold; empty means an object for each index. A nil body broke
// off: that is another fault.
func (s *Sink) genuine(p Product, status int, header http.Header, body []byte, key string) error {
	switch {
	case status < 200 || status > 299:
		return nil
	case p == OpenSearch && isJSON(header) && (body == nil || hasShape(body, key)):
		return nil
	case p != OpenSearch && named(header):
		if p == "" && s.cfg.Product == Auto {
			s.known.Store(Elasticsearch) // it does not let weft see GET /
		}
		return nil
	}
	return s.alien(p, status)
}

// stranger returns an error for an answer that only another server than the product gives, before its body is read. Of the
// statuses that a proxy gives of its own it tells nothing.
func (s *Sink) stranger(res *http.Response) error {
	p, _ := s.known.Load().(Product)
	succeeds := res.StatusCode >= 200 && res.StatusCode <= 299
	switch {
	case !succeeds && !tells(res.StatusCode), named(res.Header), p != Elasticsearch && isJSON(res.Header):
		return nil
	}
	return s.alienAt(res.Request.URL.Host, p, res.StatusCode)
}

// alien returns the error of an answer of another sender.
func (s *Sink) alien(p Product, status int) error { return s.alienAt(s.host(), p, status) }

func (s *Sink) alienAt(host string, p Product, status int) error {
	if s.cfg.Product == Auto {
		s.known.Store(Product("")) // another server may be at the address now
	}
	err := fmt.Errorf("%w: status %d from %s; correct ELASTIC_URL, or the proxy that it leads to", ErrProduct, status, host)
	if p == "" {
		err = fmt.Errorf("%w; if it is OpenSearch and weft may not see GET /, set elastic.product", err)
	}
	return err
}

// tells reports whether a status says something of what was asked for, provided that the server has sent it. The
// others say that the request did not come through, whoever has sent them.
func tells(status int) bool {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusRequestTimeout, http.StatusRequestEntityTooLarge, http.StatusTooManyRequests:
		return false
	default:
		return status >= http.StatusMultipleChoices && status < http.StatusInternalServerError
	}
}

// judges reports whether an answer that refuses a whole request is the server's own, and so may
// tell of a document or an index. key is that of genuine.
func (s *Sink) judges(status int, header http.Header, body []byte, key string) bool {
	if s.known.Load() != OpenSearch {
		return named(header)
	}
	return isJSON(header) && (hasError(body, status) || key == foundKey && hasShape(body, key) || key == "" && lacksAlias(body, status))
}

// Own reports whether an answer may be one of a search server, whichever it is: see [Product].
func Own(status int, header http.Header, body []byte) bool {
	var answer map[string]json.RawMessage
	switch {
	case named(header):
		return true
	case status == http.StatusOK:
		return isJSON(header) && json.Unmarshal(body, &answer) == nil
	default:
		return isJSON(header) && hasError(body, status)
	}
}

// named reports whether an answer names Elasticsearch as its sender.
func named(header http.Header) bool { return header.Get("X-Elastic-Product") == "Elasticsearch" }

func isJSON(header http.Header) bool {
	kind, _, err := mime.ParseMediaType(header.Get("Content-Type"))
	return err == nil && kind == "application/json"
}

// hasError reports whether body is an error object with the status.
func hasError(body []byte, status int) bool {
	var whole struct {
		Error  cause `json:"error"`
		Status int   `json:"status"`
	}
	return json.Unmarshal(body, &whole) == nil && whole.Status == status && whole.Error.Type != ""
}

// lacksAlias reports whether body says that an index has no alias of a name: an error without a type.
func lacksAlias(body []byte, status int) bool {
	var whole struct {
		Error  string `json:"error"`
		Status int    `json:"status"`
	}
	return json.Unmarshal(body, &whole) == nil && whole.Status == status && status == http.StatusNotFound &&
		strings.HasPrefix(whole.Error, "alias [") && strings.HasSuffix(whole.Error, "] missing")
}

// hasShape reports whether body is an object that holds key, or, with an empty key, nothing but objects.
func hasShape(body []byte, key string) bool {
	if key == bulkKey {
		return bytes.HasPrefix(bytes.TrimSpace(body), []byte(`{"`+key+`":[`)) // the decoder reads the rest
	}
	var answer map[string]json.RawMessage
	if json.Unmarshal(body, &answer) != nil {
		return false
	}
	if key != "" {
		return len(answer[key]) > 0
	}
	for _, v := range answer {
		if v[0] != '{' {
			return false
		}
	}
	return true
}

const (
	bulkKey  = "items" // that the filtered answer to a bulk request holds
	foundKey = "found" // that the answer about one document holds, also when that is not there
)

// keyOf returns what every success of a request holds; empty for an object for each index.
func keyOf(req esapi.Request) string {
	switch req.(type) {
	case esapi.SearchRequest:
		return "hits"
	case esapi.MgetRequest:
		return "docs"
	case esapi.CountRequest:
		return "count"
	case esapi.GetRequest:
		return foundKey
	case esapi.IndicesRefreshRequest:
		return "_shards"
	case esapi.IndicesStatsRequest:
		return "indices"
	case esapi.ClusterHealthRequest:
		return "status"
	case esapi.IndicesGetIndexTemplateRequest:
		return "index_templates"
	case esapi.IndicesSimulateTemplateRequest:
		return "template"
	case esapi.IndicesCreateRequest, esapi.IndicesDeleteRequest, esapi.IndicesPutMappingRequest, esapi.IndicesUpdateAliasesRequest, esapi.IndicesDeleteAliasRequest:
		return "acknowledged"
	default:
		return ""
	}
}
