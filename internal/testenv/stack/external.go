package stack

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

const externalBound = 10 * time.Second

// checkExternal verifies that the servers named by the caller answer; an empty URL is none.
func checkExternal(ctx context.Context, databaseURL, elasticURL string) error {
	ctx, cancel := context.WithTimeout(ctx, externalBound)
	defer cancel()
	if databaseURL != "" {
		if err := checkDatabase(ctx, databaseURL); err != nil {
			return fmt.Errorf("DATABASE_URL is set, but no PostgreSQL answers there: %s: correct it, or unset it to have a server started", oneLine(err))
		}
	}
	if elasticURL != "" {
		if _, err := clusterHealth(ctx, elasticURL, nil); err != nil {
			return fmt.Errorf("ELASTIC_URL is set to %s, but no Elasticsearch answers there: %s: correct it, or unset it to have a server started", redact(elasticURL), oneLine(err))
		}
	}
	return nil
}

func checkDatabase(ctx context.Context, dsn string) error {
	// SQLAlchemy's spelling, which DATABASE_URL may have.
	if scheme, rest, found := strings.Cut(dsn, "://"); found {
		driverless, _, _ := strings.Cut(scheme, "+")
		dsn = driverless + "://" + rest
	}
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	return conn.Close(ctx)
}

func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }

func redact(raw string) string {
	u, err := url.Parse(raw)
	if err != nil {
		return "an unparsable URL"
	}
	return u.Redacted()
}
