package config_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/samuelhu324-dev/weft/internal/config"
)

func TestSecretsAreThoseOfSettingsAndAddresses(t *testing.T) {
	t.Parallel()
	c := config.Default()
	c.Database.URL = "postgres://u:p%40ss@h/db?sslpassword=ssl%2Bone"
	c.Elastic.URL = "http://u:first@a:9200,http://b:9200"
	c.Elastic.APIKey = "key-of-elastic"
	c.Tracing.Headers = "authorization=Bearer abcdefgh,x=plain"
	got := c.Secrets()
	for _, want := range []string{"p@ss", "p%40ss", "ssl%2Bone", "ssl+one", "first", "key-of-elastic", "Bearer abcdefgh", "abcdefgh", "plain"} {
		if !slices.Contains(got, want) {
			t.Errorf("got %q, want %q among them", got, want)
		}
	}
	if !slices.IsSortedFunc(got, func(a, b string) int { return len(b) - len(a) }) {
		t.Errorf("got %q, want the longest first", got)
	}
	if got := config.Default().Secrets(); len(got) != 0 {
		t.Errorf("got %q without settings, want none", got)
	}
}

func TestMaskHidesWhatLooksLikeASecret(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"it is known here":                         "it is ***** here",
		"see https://u:pw@h/x and pq://v:q@i":      "see https://u:*****@h/x and pq://v:*****@i",
		"https://h/a@b is fine":                    "https://h/a@b is fine",
		"host=h password=pw api_key=k user=u":      "host=h password=***** api_key=***** user=u",
		"Authorization: Bearer abc.def-1":          "Authorization: Bearer *****",
		"authorization: basic dXNlcjpwdw== failed": "authorization: basic ***** failed",
	} {
		if got := config.Mask(text, []string{"known"}); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		if strings.Contains(config.Mask(text, nil), "pw") {
			t.Errorf("%q still holds its password", text)
		}
	}
}
