package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/samuelhu324-dev/weft/internal/config"
	"github.com/samuelhu324-dev/weft/internal/postgres"
	"github.com/samuelhu324-dev/weft/leader"
	"github.com/samuelhu324-dev/weft/projections/elastic"
)

// elasticKeys are the settings of the access to Elasticsearch.
var elasticKeys = []string{
	"elastic.url", "elastic.username", "elastic.password", "elastic.api_key", "elastic.service_token",
	"elastic.ca_file", "elastic.ca_fingerprint", "elastic.client_cert_file", "elastic.client_key_file",
}

// elasticConfig returns the destination of the documents, without the user of the URL, and
// the access to it.
func elasticConfig(c config.Elastic) (out elastic.Config, access elastic.Access, err error) {
	access = elastic.Access{
		Username: c.Username, Password: c.Password.Reveal(), APIKey: c.APIKey.Reveal(), ServiceToken: c.ServiceToken.Reveal(),
		CAFingerprint: c.CAFingerprint,
	}
	var urls []string
	for _, raw := range c.URLs() {
		u, err := url.Parse(raw)
		if err != nil {
			return out, access, errors.New("URL of Elasticsearch cannot be parsed") // the error repeats it, password and all
		}
		if u.User != nil {
			access.Username = u.User.Username()
			access.Password, _ = u.User.Password()
			u.User = nil
		}
		urls = append(urls, u.String())
	}
	for _, f := range []struct {
		what, path string
		pem        *[]byte
	}{
		{"authority of Elasticsearch", c.CAFile, &access.CA},
		{"client certificate for Elasticsearch", c.ClientCertFile, &access.ClientCert},
		{"key of the client certificate for Elasticsearch", c.ClientKeyFile, &access.ClientKey},
	} {
		if f.path == "" {
			continue
		}
		if *f.pem, err = os.ReadFile(f.path); err != nil {
			return out, access, fmt.Errorf("%s: %w", f.what, err)
		}
	}
	return elastic.Config{
		URLs: urls, Index: c.Index, SearchAlias: c.SearchAlias, Product: elastic.Product(c.Product), RequestTimeout: c.Timeout, MaxBody: c.MaxBody, Gzip: c.Gzip,
	}, access, nil
}

// ElasticConfig returns how a command reaches Elasticsearch.
func ElasticConfig(c config.Elastic) (elastic.Config, error) {
	out, access, err := elasticConfig(c)
	if err != nil {
		return out, err
	}
	transport, err := elastic.NewTransport(access)
	if err != nil {
		return out, err
	}
	out.Transport = transport
	return out, nil
}

// relogin tries the password and certificates of next. If Postgres accepts them, new
// connections use them and the pool replaces its old ones. The lock session stays as it is.
func (d *daemon) relogin(ctx context.Context, next config.Config) error {
	raw := next.Database.URL.Reveal()
	if differs, err := d.login.Differs(raw); err != nil || !differs {
		return err
	}
	conn, err := postgres.Connect(ctx, raw, postgres.Options{
		AppName: leader.AppName(d.cfg.Group, d.cfg.Instance, "reload"), Statement: d.cfg.Database.Timeout})
	switch kind, text := d.diagnose(err); {
	case err == nil:
		_ = conn.Close(ctx)
	case kind == postgres.Unreachable, kind == postgres.TooManyConnections, kind == postgres.ReadOnly:
		d.log.Warn("reload: the new access to Postgres could not be tried", zap.String("event", "config.untried"), zap.String("error", text))
	default:
		return errors.New(text + "; reload again once that is fixed")
	}
	if err := d.login.Change(raw); err != nil {
		return err
	}
	d.pool.Reset()
	return nil
}

// reaccess makes requests to Elasticsearch use the access of next, unless the server refuses
// it.
func (d *daemon) reaccess(ctx context.Context, next config.Config) error {
	target, access, err := elasticConfig(next.Elastic)
	if err != nil {
		return err
	}
	if !slices.Equal(target.URLs, d.target.URLs) {
		return errors.New("ELASTIC_URL leads to another server: that takes a restart")
	}
	if !d.elastic.Differs(access) {
		return nil
	}
	for _, name := range d.cfg.Projections {
		if err := d.tryElastic(ctx, name, target, access); err != nil {
			return err
		}
	}
	return d.elastic.Change(access)
}

// tryElastic returns an error when the server refuses access for a projection, and nil after
// any other fault.
func (d *daemon) tryElastic(ctx context.Context, projection string, target elastic.Config, access elastic.Access) error {
	if !d.Registry.Indexed(projection) {
		return nil
	}
	transport, err := elastic.NewTransport(access)
	if err != nil {
		return err
	}
	target.Transport = transport
	sink, err := d.Registry.Sink(projection, target, zap.NewNop(), prometheus.NewRegistry())
	if err != nil {
		return err
	}
	defer sink.Close()
	err = sink.Ready(ctx)
	if elastic.IsAccess(err) {
		return fmt.Errorf("%w; reload again once that is fixed", err)
	}
	if err != nil {
		d.log.Warn("reload: the new access to Elasticsearch could not be tried", zap.String("event", "config.untried"), zap.Error(err))
	}
	return nil
}
