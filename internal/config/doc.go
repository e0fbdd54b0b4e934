// Package config loads weft's settings: defaults, then a YAML file, then the
// environment, then flags; the later layer wins.
//
// # What is guaranteed
//
//   - One table (settings.go, with parts beside it) names every setting. Flags, the environment lookup,
//     [Markdown] and [Config.Effective] are made from it, so they cannot disagree.
//   - A value that does not parse is an error even where a later layer overrides
//     it, and so is an unknown key of the file or an unknown WEFT_ name. All of
//     them are reported at once, each with its key, value and place.
//   - A Config returned without an error has passed every range and relation.
//   - Every secret setting can be read from a file: NAME_FILE, key_file, --flag-file. The
//     file holds one line, whose end does not count; both forms in one layer are an error.
//   - No secret is printed: the types [URL] and [Secret] mask themselves with
//     every fmt verb and in JSON, and errors mask the values of secret settings.
//
// # What is not guaranteed
//
//   - Nothing is contacted: a URL that parses may lead nowhere.
//   - Names with foreign prefixes (OUTBOX_, ELASTIC_ …) that weft does not know are
//     ignored, because a Wordloom environment carries names of other programs;
//     [Config.Warnings] lists the ones that look like ours.
//   - Nothing is watched: a change of a file counts when the caller loads again.
//     [Config.Changed] lists the differences then, [Config.With] applies a part of them.
//
// # What koanf does, and what it does not
//
// koanf reads the file and merges the layers: loader.merge hands it each layer, with the
// defaults below the first. Its providers env and posflag would read the other two layers
// with one line each:
//
//	k.Load(env.Provider(".", env.Opt{TransformFunc: key}), nil)
//	k.Load(posflag.Provider(flags, ".", k), nil)
//
// They deliver values without their places, and a later layer replaces an earlier value
// before anybody has checked it. weft must report a bad OUTBOX_BULK_SIZE although --bulk-size
// overrides it, name both places of a wrong relation, refuse two names of one setting with
// different values, read NAME_FILE, and take OUTBOX_LEASE_SECONDS in seconds. So the loader
// builds each layer from the table of settings as text with its place ([Problem].Place),
// checks every value there, and merges the checked ones.
package config
