// Package config loads weft's settings: defaults, then a YAML file, then the
// environment, then flags; the later layer wins.
//
// # What is guaranteed
//
//   - One table (settings.go) names every setting. Flags, the environment lookup,
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
//     [Config.Changed] says what is different then, [Config.With] takes a part of it.
package config
