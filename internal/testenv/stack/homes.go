package stack

import (
	"context"
	"io"
)

// Homes returns the directories of the unpacked default servers, and fetches what is missing.
// The caller changes nothing in them.
func Homes(ctx context.Context, progress io.Writer) (postgres, elastic string, err error) {
	what, err := provide(ctx, Options{}, newReporter(progress))
	if err != nil {
		return "", "", err
	}
	return what.PostgresHome, what.ElasticHome, nil
}
