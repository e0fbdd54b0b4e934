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
	c = config.Default()
	c.Elastic.APIKey = "bm9ib2R5OnNlY3JldA=="
	c.Database.Password = "a,b=c"
	if got, want := c.Secrets(), []string{"a,b=c", "bm9ib2R5OnNlY3JldA=="}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q: no part of a key would hide only this key", got, want)
	}
	if got := config.Default().Secrets(); len(got) != 0 {
		t.Errorf("got %q without settings, want none", got)
	}
}

func TestPasswordsAreFoundInAllFormsOfAnAddress(t *testing.T) {
	t.Parallel()
	for address, want := range map[string][]string{
		"postgres://u:one@h1:5432,h2:5433/db":           {"one"},
		"postgres://u:a,b@h/db":                         {"a,b"},
		"http://u:a,b%21@h:9200, http://v:two@i:9200":   {"a,b%21", "a,b!", "two"},
		"redis://:one@h,redis://:two@i":                 {"one", "two"},
		"https://h:9200/a@b":                            nil,
		"postgres://u@h/db?application_name=a:b@c":      nil,
		"3=postgres://u:one@h/d,5=postgres://v:two@i/d": {"one", "two"},
		`host=h password='it\'s' user=u`:                {`it\'s`, "it's"},
		"":                                              nil,
	} {
		if got := config.Passwords(address); !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", address, got, want)
		}
	}
}

func TestMaskHidesWhatLooksLikeASecret(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"it is known here":                         "it is ***** here",
		"it is knownword here":                     "it is ***** here",
		"see https://u:pw@h/x and pq://v:q@i":      "see https://u:*****@h/x and pq://v:*****@i",
		"https://h/a@b is fine":                    "https://h/a@b is fine",
		"host=h password=pw api_key=k user=u":      "host=h password=***** api_key=***** user=u",
		"Authorization: Bearer abc.def-1":          "Authorization: Bearer *****",
		"authorization: basic dXNlcjpwdw== failed": "authorization: basic ***** failed",
	} {
		if got := config.Mask(text, []string{"known", "knownword"}); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		if strings.Contains(config.Mask(text, nil), "pw") {
			t.Errorf("%q still holds its password", text)
		}
	}
}

func TestEffectiveSettingsNameEachNode(t *testing.T) {
	t.Parallel()
	c := config.Default()
	c.Elastic.URL = "http://u:first@a:9200,http://u:first@b:9200"
	want := "http://u:*****@a:9200,http://u:*****@b:9200"
	if all := c.Effective(); !slices.ContainsFunc(all, func(v config.Value) bool { return v.Key == "elastic.url" && v.Value == want }) {
		t.Errorf("got %v, want %s", all, want)
	}
}
