package main

import (
	"errors"
	"fmt"
	"os"
	"strings"
)

// acceptedFile holds the advisories that stay open on purpose, one a line: the advisory,
// the module's directory, and the reason.
const acceptedFile = "tools/advisories.txt"

type entry struct {
	Advisory, Dir, Reason string
	used                  bool
}

type accepted []*entry

func readAccepted(path string) (accepted, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var all accepted
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		words := strings.Fields(line)
		if len(words) < 3 {
			return nil, fmt.Errorf("%q: want an advisory, a directory and a reason", line)
		}
		all = append(all, &entry{Advisory: words[0], Dir: words[1], Reason: strings.Join(words[2:], " ")})
	}
	return all, nil
}

// of returns the reason why an advisory is accepted in a module.
func (a accepted) of(advisory, dir string) (reason string, ok bool) {
	for _, e := range a {
		if e.Advisory == advisory && e.Dir == dir {
			e.used = true
			return e.Reason, true
		}
	}
	return "", false
}

func (a accepted) unused() (rest []*entry) {
	for _, e := range a {
		if !e.used {
			rest = append(rest, e)
		}
	}
	return rest
}
