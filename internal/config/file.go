package config

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// maxSecret is more than any password, token or URL has.
const maxSecret = 64 << 10

// Every secret setting has a second form that names a file instead: elastic.password_file,
// ELASTIC_PASSWORD_FILE, --elastic-password-file.

func (s setting) fileKey() string { return s.key + "_file" }
func (s setting) fileEnv() string { return s.env + "_FILE" }

func (s setting) fileFlag() string {
	if s.flag != "" {
		return s.flag + "-file"
	}
	return strings.NewReplacer(".", "-", "_", "-").Replace(s.key) + "-file"
}

// ReadSecret returns the one line that the file at path holds, without its end. The
// error says what is wrong and what is wanted, and not what the file holds.
func ReadSecret(path string) (string, error) {
	if path == "" {
		return "", errors.New("the name is empty: want the path of a file, or leave it out")
	}
	f, err := os.Open(path)
	if err != nil {
		return "", plainCause(err)
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(io.LimitReader(f, maxSecret+1))
	text := strings.TrimRight(string(b), "\r\n")
	switch {
	case err != nil:
		return "", plainCause(err)
	case len(b) > maxSecret:
		return "", errors.New("longer than 64 KiB: want one line with the value")
	case text == "":
		return "", errors.New("is empty: want one line with the value")
	case strings.ContainsAny(text, "\x00\r\n"):
		return "", errors.New("want one line with the value, found more than that")
	}
	return text, nil
}

// tooOpen says how a file with secrets should be protected, or nothing. Groups may read:
// that is how files are shared with one service.
func tooOpen(path string) string {
	info, err := os.Stat(path)
	if err != nil || !info.Mode().IsRegular() || info.Mode()&0o026 == 0 {
		return ""
	}
	return fmt.Sprintf("%s holds a secret, and its mode %04o lets others read or change it: chmod 0640 it, or 0600", path, info.Mode().Perm())
}

// plainCause is the reason without the path, which the caller names.
func plainCause(err error) error {
	if pe, ok := errors.AsType[*os.PathError](err); ok {
		return pe.Err
	}
	return err
}
