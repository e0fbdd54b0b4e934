package wire

import (
	"errors"
	"fmt"
	"net/url"
)

// Ways are the proxies between one instance and both servers: a link to PostgreSQL, and a
// link to a tap before Elasticsearch.
type Ways struct {
	Postgres, Elastic       *Link
	Tap                     *Tap
	DatabaseURL, ElasticURL string // through them
}

// NewWays starts the proxies of an instance. Its tap records to rec. Close ends them.
func NewWays(instance, databaseURL, elasticURL string, rec *Recorder) (w *Ways, err error) {
	w = new(Ways)
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("ways of %s: %w", instance, err), w.Close())
		}
	}()
	database, err := url.Parse(databaseURL)
	if err != nil {
		return w, errors.New("database: want a URL") // the error's text may hold a password
	}
	if w.Postgres, err = NewLink(database.Host); err != nil {
		return w, err
	}
	if w.Tap, err = NewTap(instance, elasticURL, rec); err != nil {
		return w, err
	}
	tap, err := url.Parse(w.Tap.URL())
	if err != nil {
		return w, err
	}
	if w.Elastic, err = NewLink(tap.Host); err != nil {
		return w, err
	}
	if w.DatabaseURL, err = w.Postgres.Through(databaseURL); err != nil {
		return w, err
	}
	w.ElasticURL, err = w.Elastic.Through(w.Tap.URL())
	return w, err
}

// Heal ends all faults.
func (w *Ways) Heal() error {
	w.Tap.Clear()
	return errors.Join(w.Postgres.Heal(), w.Elastic.Heal())
}

// Close ends all connections and records the requests in flight to Elasticsearch.
func (w *Ways) Close() error {
	var errs []error
	if w.Elastic != nil {
		errs = append(errs, w.Elastic.Close())
	}
	if w.Tap != nil {
		errs = append(errs, w.Tap.Close())
	}
	if w.Postgres != nil {
		errs = append(errs, w.Postgres.Close())
	}
	return errors.Join(errs...)
}
