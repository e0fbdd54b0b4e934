package weft

import (
	"github.com/samuelhu324-dev/weft/internal/config"
	"github.com/samuelhu324-dev/weft/internal/postgres"
)

// Settings are the settings of weft: one field for each line of docs/configuration.md.
type Settings = config.Config

// URL is the address of a server. It prints without its password.
type URL = config.URL

// Secret is a password or key. It prints masked.
type Secret = config.Secret

// DefaultSettings returns the defaults, with a name of the instance that is unique, and no
// projections. Set Database.URL.
func DefaultSettings() Settings {
	s := config.Default()
	s.Projections = nil
	return s
}

// Source says where LoadSettings reads.
type Source struct {
	File    string   // weft's YAML file; empty means WEFT_CONFIG of Environ, or none
	Environ []string // weft's variables, as os.Environ returns them; nil means none
	// Projections are the names that the program will register. The file may list them, without a
	// value beside those that it declares; where it lists none, they run, and not the built-in ones.
	Projections []string
}

// LoadSettings reads the settings of the program weft, so that both can share them. Its error
// names all that is wrong, each with its place.
func LoadSettings(s Source) (Settings, error) {
	return config.Load(config.Options{
		File: s.File, Environ: s.Environ, Registered: s.Projections,
		CheckDatabaseURL: func(raw string) error { _, err := postgres.ParseURL(raw); return err },
	})
}
