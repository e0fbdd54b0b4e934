package doctor

import (
	"bytes"
	"cmp"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/samuelhu324-dev/weft/internal/records"
	"github.com/samuelhu324-dev/weft/projections"
	"github.com/samuelhu324-dev/weft/projections/elastic"
)

// target is an index that a projection of the configuration writes to.
type target struct {
	projection, index string
	mapping           json.RawMessage
	pipeline          string // that each request names
	lenient           bool   // the settings of its definition say what becomes of malformed values
}

// targets are those of the projections that run.
func (e *examination) targets() (out []target) {
	for _, name := range e.Config.Projections {
		if name == projections.SearchIndexToElastic {
			out = append(out, target{projection: name, index: e.Config.Elastic.Index, mapping: elastic.Mapping()})
		}
		for _, d := range e.Config.Declared {
			if d.Name == name && d.Index != "" {
				lenient := bytes.Contains(d.Settings, []byte("ignore_malformed"))
				out = append(out, target{name, d.Index, d.IndexMapping(), d.Pipeline, lenient})
			}
		}
	}
	return out
}

// maxAnswer bounds an answer of Elasticsearch.
const maxAnswer = 32 << 20

// server asks one Elasticsearch.
type server struct {
	url          *url.URL
	client       *http.Client
	timeout      time.Duration       // of one request
	certificates []*x509.Certificate // that it has shown
}

// refused is an answer other than the one that was asked for.
type refused struct {
	status int
	text   string // the beginning of the body
	said   string // what it says in words
}

func (r *refused) Error() string { return fmt.Sprintf("status %d: %s", r.status, r.text) }

// remedyOfAddress is what to do where something other than a search server answers.
const remedyOfAddress = "correct ELASTIC_URL, or the proxy that it leads to"

// ask reads the answer to a request into out. Its error is a *refused for an answer that is
// none of success, and [elastic.ErrProduct] where something else says that there is success, or that there is
// no such thing.
func (s *server) ask(ctx context.Context, method, path string, body []byte, out any) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	at, err := s.url.Parse(strings.TrimSuffix(s.url.Path, "/") + path)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, method, at.String(), bytes.NewReader(body))
	if err != nil {
		return err
	}
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	response, err := s.client.Do(request)
	if err != nil {
		if text, ok := errors.AsType[*url.Error](err); ok {
			err = text.Err // the URL may hold a password
		}
		return err
	}
	defer func() { _ = response.Body.Close() }()
	if response.TLS != nil {
		s.certificates = response.TLS.PeerCertificates
	}
	answer, err := elastic.ReadBody(nil, response.Header, response.Body, maxAnswer)
	if err != nil {
		return err
	}
	if status := response.StatusCode; (status == http.StatusOK || status == http.StatusNotFound) && !elastic.Own(status, response.Header, answer) {
		return fmt.Errorf("%w: status %d", elastic.ErrProduct, status)
	}
	if response.StatusCode != http.StatusOK {
		return &refused{response.StatusCode, string(answer[:min(len(answer), 200)]), elastic.Said(response.StatusCode, answer)}
	}
	if err := json.Unmarshal(answer, out); err != nil {
		return fmt.Errorf("%w: %w", elastic.ErrUnreadable, err)
	}
	return nil
}

// noUse reports whether err says that the answer is not one of a search server, or is cut, or has no end.
func noUse(err error) bool {
	return errors.Is(err, elastic.ErrProduct) || errors.Is(err, elastic.ErrTooLarge) || errors.Is(err, elastic.ErrUnreadable)
}

// statusOf returns the status of a refusal, 0 for any other error.
func statusOf(err error) int {
	if r, ok := errors.AsType[*refused](err); ok {
		return r.status
	}
	return 0
}

// elastic examines each server, and by the first that answers the cluster and each target.
func (e *examination) elastic(ctx context.Context, targets []target) error {
	if err := errors.Join(e.expiringFile(e.Config.Elastic.ClientCertFile), e.expiringFile(e.Config.Elastic.CAFile)); err != nil {
		e.add("elastic.certificate", Error, "", err.Error(), "correct elastic.client_cert_file and elastic.ca_file")
	}
	client := &http.Client{Transport: e.Elastic.Transport}
	defer client.CloseIdleConnections()
	var first *server
	for _, raw := range e.Elastic.URLs {
		u, err := url.Parse(raw)
		if err != nil {
			return errors.New("URL of Elasticsearch cannot be parsed")
		}
		s := &server{url: u, client: client, timeout: min(e.Config.Elastic.Timeout, e.Config.Database.Timeout)}
		switch {
		case !e.answers(ctx, s, first == nil):
		case first == nil:
			first = s
		default:
			e.sameCluster(ctx, first, s, targets)
		}
	}
	if first == nil {
		return nil
	}
	if err := errors.Join(e.nodes(ctx, first), e.disks(ctx, first)); err != nil {
		return err
	}
	if err := errors.Join(e.privileges(ctx, first, targets), e.expiringKey(ctx, first)); err != nil {
		return err
	}
	for _, t := range targets {
		err := e.target(ctx, first, t)
		if noUse(err) {
			e.add("elastic.reachable", Error, first.url.Host, "no use for "+t.index+": "+err.Error(), remedyOfAddress)
		} else if err != nil {
			return err
		}
	}
	return nil
}

// answers reports whether a server lets weft in. Of the cluster it tells when cluster is set.
func (e *examination) answers(ctx context.Context, s *server, cluster bool) bool {
	var health struct {
		Status     string `json:"status"`
		Unassigned int    `json:"unassigned_shards"`
	}
	err := s.ask(ctx, http.MethodGet, "/_cluster/health", nil, &health)
	if err == nil && cluster && health.Status == "red" { // as for a moment where somebody makes an index; one that stays so answers with 408
		_ = s.ask(ctx, http.MethodGet, "/_cluster/health?wait_for_status=yellow&timeout=3s", nil, &health)
	}
	e.expiringOf("elastic.certificate", s.url.Host, s.certificates)
	switch status := statusOf(err); {
	case status == http.StatusUnauthorized:
		refusal, _ := errors.AsType[*refused](err)
		e.add("elastic.rights", Error, s.url.Host, "the server does not accept the credentials: "+refusal.said, e.corrected()+"; then `kill -HUP` each instance")
		return false
	case noUse(err):
		e.add("elastic.reachable", Error, s.url.Host, "no use: "+err.Error(), remedyOfAddress)
		return false
	case err != nil && status != http.StatusForbidden: // without the privilege `monitor` the rest goes on
		text, remedy := "no answer: ", "start the server, or correct ELASTIC_URL"
		op, _ := errors.AsType[*net.OpError](err)
		switch {
		case op != nil && op.Op == "proxyconnect":
			remedy = "the environment names a proxy: start it, correct HTTP_PROXY or HTTPS_PROXY, or name the host in NO_PROXY"
		case status != 0:
			text, remedy = "no use: it answers with ", "look at its load and its log, or correct ELASTIC_URL"
		case elastic.IsAccess(err): // of a handshake, which says what to do
			remedy = "as it says; then `kill -HUP` each instance: docs/security.md, Rotation"
		}
		e.add("elastic.reachable", Error, s.url.Host, text+err.Error(), remedy)
		return false
	case cluster && health.Status == "red":
		e.add("elastic.health", Error, s.url.Host, "the cluster is red: "+records.Counted(health.Unassigned, "1 shard is not assigned", "%d shards are not assigned"), "GET /_cluster/allocation/explain says why")
	}
	return true
}

// product returns what the server says it is; where it hides that, what the configuration says.
func (e *examination) product(ctx context.Context, s *server) elastic.Product {
	var root struct {
		Version struct {
			Distribution string `json:"distribution"`
		} `json:"version"`
	}
	set := elastic.Product(e.Config.Elastic.Product)
	err := s.ask(ctx, http.MethodGet, "/", nil, &root)
	switch open := root.Version.Distribution == string(elastic.OpenSearch); {
	case err == nil && open && set == elastic.Elasticsearch:
		e.add("elastic.version", Error, s.url.Host, "elastic.product is elasticsearch, and the server is OpenSearch", "correct elastic.product, or leave it at auto")
		return elastic.OpenSearch
	case open, set == elastic.OpenSearch:
		return elastic.OpenSearch
	}
	return elastic.Elasticsearch
}

// nodes examines the versions of a cluster.
func (e *examination) nodes(ctx context.Context, s *server) error {
	product, tried := e.product(ctx, s), []string{"8", "9"}
	if product == elastic.OpenSearch {
		tried = []string{"2", "3"}
	}
	var nodes struct {
		Nodes map[string]struct {
			Version string `json:"version"`
		} `json:"nodes"`
	}
	if err := s.ask(ctx, http.MethodGet, "/_nodes?filter_path=nodes.*.version", nil, &nodes); err != nil {
		return unprivileged(err)
	}
	versions := map[string]bool{}
	for _, n := range nodes.Nodes {
		versions[n.Version] = true
		if err := product.CheckVersion(n.Version); err != nil {
			e.add("elastic.version", Error, s.url.Host, "a node runs "+n.Version+": "+err.Error(), "upgrade the cluster")
		} else if major, _, _ := strings.Cut(n.Version, "."); !slices.Contains(tried, major) {
			e.add("elastic.version", Note, s.url.Host, "a node runs "+n.Version+": weft is tried with Elasticsearch 8 and 9, and OpenSearch 2 and 3", "docs/platforms.md says what ran on which version")
		}
	}
	if len(versions) > 1 {
		e.add("elastic.version", Note, s.url.Host, "the nodes run different versions: "+strings.Join(slices.Sorted(maps.Keys(versions)), ", "), "finish the upgrade of the cluster")
	}
	return nil
}

// unprivileged makes nothing of a refusal for lack of rights: these questions need the cluster
// privilege `monitor`, which an instance does not, and whose lack is a finding of privileges.
func unprivileged(err error) error {
	if statusOf(err) == http.StatusForbidden {
		return nil
	}
	return err
}

func (e *examination) target(ctx context.Context, s *server, t target) error {
	var found map[string]index
	err := s.ask(ctx, http.MethodGet, "/"+url.PathEscape(t.index), nil, &found)
	switch status := statusOf(err); {
	case status == http.StatusNotFound:
		return e.nameless(ctx, s, t)
	case status == http.StatusForbidden && strings.Contains(err.Error(), "cluster_block_exception"):
		e.add("elastic.blocks", Error, t.index, "nobody may read what the index is: index.blocks.metadata", fmt.Sprintf(`ask who set it, then: PUT /%s/_settings {"index.blocks.metadata":null}`, t.index))
		return nil
	case status == http.StatusForbidden:
		e.add("elastic.rights", Error, t.index, "the credentials may not read what the index is (view_index_metadata)", "docs/security.md, Elasticsearch, names the privileges")
		return nil
	case err != nil:
		return err
	}
	name := e.writer(t, found)
	if name == "" {
		return nil
	}
	at := found[name]
	if err := e.mapping(t, name, at.Mappings); err != nil {
		return err
	}
	e.led(ctx, t, name, at.Mappings)
	e.gcDeletes(name, at.Settings.Index.GCDeletes)
	e.durability(name, at.Settings.Index.Translog.Durability)
	e.malformed(t, name, at.Settings.Index.Mapping.IgnoreMalformed)
	if err := errors.Join(e.searched(ctx, s, name), e.copies(ctx, s, name, at), e.pipelines(ctx, s, name, cmp.Or(t.pipeline, at.Settings.Index.Default), at.Settings.Index.Final)); err != nil {
		return err
	}
	if at.Settings.Index.Closed == "true" {
		e.add("elastic.blocks", Error, name, "the index is closed: it takes neither writes nor searches", fmt.Sprintf(`ask who closed it, then: POST /%s/_open`, name))
	}
	for _, block := range slices.Sorted(maps.Keys(at.Settings.Index.Blocks)) {
		if at.Settings.Index.Blocks[block] != "true" || block == "metadata" {
			continue
		}
		text := "the index takes no writes: index.blocks." + block
		switch block {
		case "read":
			text = "the index answers no searches: index.blocks.read"
		case "read_only_allow_delete":
			text += ", because a disk was full: free space first"
		}
		e.add("elastic.blocks", Error, name, text, fmt.Sprintf(`PUT /%s/_settings {"index.blocks.%s":null}`, name, block))
	}
	return nil
}

// nameless tells of a name that leads nowhere. Where indexes of the name are left, an empty one would hide
// what they have.
func (e *examination) nameless(ctx context.Context, s *server, t target) error {
	var left map[string]json.RawMessage
	if err := s.ask(ctx, http.MethodGet, "/"+url.PathEscape(t.index)+"-v*?filter_path=*.aliases", nil, &left); err != nil && statusOf(err) == 0 {
		return err
	}
	if len(left) == 0 {
		e.add("elastic.alias", Warning, t.index, "neither an alias nor an index has the name", "`weft run` makes an empty index with an alias, or says in its log (dependency.down) why it cannot; where rows are there already, to fill it: "+e.filling(t.projection))
		return nil
	}
	last := newest(slices.Collect(maps.Keys(left)))
	e.add("elastic.alias", Error, t.index, "neither an alias nor an index has the name, and "+last+" is there: the alias was removed",
		attachment(t.index, last)+"; then "+asked("verify "+t.projection+" --repair")+", since it may be the old one of a rebuild")
	return nil
}

// asked returns a command that takes a reason.
func asked(command string) string { return "`weft " + command + ` --by YOU --why "…"` + "`" }

// searched examines the alias over the indexes of all shards, where each has its own.
func (e *examination) searched(ctx context.Context, s *server, name string) error {
	alias := e.Config.Elastic.SearchAlias
	if alias == "" {
		return nil
	}
	var found map[string]json.RawMessage
	if err := s.ask(ctx, http.MethodGet, "/"+url.PathEscape(alias), nil, &found); err != nil && statusOf(err) != http.StatusNotFound {
		return unprivileged(err)
	}
	if _, there := found[name]; !there {
		e.add("elastic.alias", Error, alias, "it does not lead to "+name+": searches do not find the documents of the shard",
			fmt.Sprintf(`POST /_aliases {"actions":[{"add":{"index":%q,"alias":%q,"is_write_index":false}}]}`, name, alias))
	}
	for _, index := range slices.Sorted(maps.Keys(found)) {
		if !elastic.IsOfShard(alias, index) {
			e.add("elastic.alias", Error, alias, "it leads to "+index+", which is of no shard: searches find documents twice",
				"docs/scaling.md, One index, or an index each, has the way from one index to several")
		}
	}
	return nil
}

// writer returns the index that takes the writes to the name, "" when there is not exactly one.
func (e *examination) writer(t target, found map[string]index) string {
	if _, plain := found[t.index]; plain {
		e.add("elastic.alias", Note, t.index, "it is a plain index: a rebuild cannot replace it without a moment in which the name is gone", asked("rebuild "+t.projection+" --replace-plain")+" makes it an alias")
		return t.index
	}
	var writers []string
	for _, name := range slices.Sorted(maps.Keys(found)) {
		a, there := found[name].Aliases[t.index]
		if there && a.Write != nil && *a.Write || there && a.Write == nil && len(found) == 1 {
			writers = append(writers, name)
		}
	}
	all := slices.Sorted(maps.Keys(found))
	if len(writers) == 1 {
		whole := attachment(t.index, writers[0])
		if a := found[writers[0]].Aliases[t.index]; a.Routing != "" {
			e.add("elastic.alias", Error, t.index, fmt.Sprintf("the alias has the routing %q: documents are written with it, and weft looks for them without", a.Routing), whole+", then "+asked("rebuild "+t.projection))
		} else if a.Filter != nil {
			e.add("elastic.alias", Warning, t.index, "the alias has a filter: searches find a part of the documents", whole+"; or let searches use an alias of their own")
		}
		for _, name := range all {
			if name != writers[0] {
				e.add("elastic.alias", Warning, t.index, "it also leads to "+name+", into which weft does not write: searches find documents twice, and deleted ones",
					"once `weft verify "+t.projection+"` names no missing document: "+elastic.Detachment(t.index, name))
			}
		}
		return writers[0]
	}
	if strings.HasPrefix(all[0], elastic.DataStream+t.index+"-") {
		e.add("elastic.alias", Error, t.index, "it is a data stream, which takes no document with a version", "name another index or alias, which `weft run` makes")
		return ""
	}
	e.add("elastic.alias", Error, t.index, fmt.Sprintf("the alias leads to %s, and %d of them take writes: want 1", strings.Join(all, ", "), len(writers)),
		attachment(t.index, newest(all)))
	return ""
}
