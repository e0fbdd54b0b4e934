package proxy

import (
	"errors"
	"fmt"
	"net/url"
)

// Proxies are the proxies between one instance and both servers: a link to PostgreSQL, and
// one to a tap before Elasticsearch.
type Proxies struct {
	Postgres, Elastic       *Link
	Tap                     *Tap
	DatabaseURL, ElasticURL string // through them
}

// NewProxies starts the proxies of an instance. Its tap records to rec. Close ends them.
func NewProxies(instance, databaseURL, elasticURL string, rec *Recorder) (p *Proxies, err error) {
	p = new(Proxies)
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("proxies of %s: %w", instance, err), p.Close())
		}
	}()
	database, err := url.Parse(databaseURL)
	if err != nil {
		return p, errors.New("database: want a URL") // the error's text may hold a password
	}
	if p.Postgres, err = NewLink(database.Host); err != nil {
		return p, err
	}
	if p.Tap, err = NewTap(instance, elasticURL, rec); err != nil {
		return p, err
	}
	if p.Elastic, err = NewLink(p.Tap.addresses()...); err != nil {
		return p, err
	}
	if p.ElasticURL, err = p.Elastic.Through(p.Tap.URL()); err != nil {
		return p, err
	}
	p.DatabaseURL, err = p.Postgres.Through(databaseURL)
	return p, err
}

// Heal ends all faults.
func (p *Proxies) Heal() error {
	p.Tap.Clear()
	return errors.Join(p.Postgres.Heal(), p.Elastic.Heal())
}

// Close ends all connections and records the requests in flight to Elasticsearch.
func (p *Proxies) Close() error {
	var errs []error
	if p.Elastic != nil {
		errs = append(errs, p.Elastic.Close())
	}
	if p.Tap != nil {
		errs = append(errs, p.Tap.Close())
	}
	if p.Postgres != nil {
		errs = append(errs, p.Postgres.Close())
	}
	return errors.Join(errs...)
}
