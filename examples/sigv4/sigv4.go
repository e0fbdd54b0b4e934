package sigv4

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// Credentials are those of a user or, with Session, of a role.
type Credentials struct{ AccessKey, SecretKey, Session string }

// Signer signs requests and passes them on. It may be used by several goroutines at once.
type Signer struct {
	Region      string
	Service     string // es for OpenSearch Service, aoss for its serverless collections
	Credentials func(context.Context) (Credentials, error)
	Next        http.RoundTripper
	Now         func() time.Time // nil means time.Now
}

// RoundTrip implements [http.RoundTripper].
func (s *Signer) RoundTrip(req *http.Request) (*http.Response, error) {
	credentials, err := s.Credentials(req.Context())
	if err != nil {
		return nil, fmt.Errorf("credentials: %w", err)
	}
	signed := req.Clone(req.Context()) // a RoundTripper leaves its request alone
	sum, err := hashBody(signed)
	if err != nil {
		return nil, fmt.Errorf("body of the request: %w", err)
	}
	now := time.Now
	if s.Now != nil {
		now = s.Now
	}
	signed.Header.Set("X-Amz-Content-Sha256", sum)
	s.sign(signed, credentials, sum, now().UTC())
	return s.Next.RoundTrip(signed)
}

// CloseIdleConnections closes those of Next.
func (s *Signer) CloseIdleConnections() {
	if c, ok := s.Next.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// hashBody returns the SHA-256 of the body in hex, and leaves the body to be read.
func hashBody(req *http.Request) (string, error) {
	hash := sha256.New()
	if req.Body == nil || req.Body == http.NoBody {
		return hex.EncodeToString(hash.Sum(nil)), nil
	}
	if req.GetBody == nil {
		whole, err := io.ReadAll(req.Body)
		if err != nil {
			return "", err
		}
		_ = req.Body.Close()
		req.Body = io.NopCloser(bytes.NewReader(whole))
		hash.Write(whole)
		return hex.EncodeToString(hash.Sum(nil)), nil
	}
	body, err := req.GetBody()
	if err != nil {
		return "", err
	}
	defer func() { _ = body.Close() }()
	_, err = io.Copy(hash, body)
	return hex.EncodeToString(hash.Sum(nil)), err
}

// sign adds the headers of a signature.
func (s *Signer) sign(req *http.Request, c Credentials, bodyHash string, now time.Time) {
	stamp := now.Format("20060102T150405Z")
	req.Header.Set("X-Amz-Date", stamp)
	if c.Session != "" {
		req.Header.Set("X-Amz-Security-Token", c.Session)
	}
	headers := map[string]string{"host": req.URL.Host}
	if req.Host != "" {
		headers["host"] = req.Host
	}
	for name, values := range req.Header {
		if name = strings.ToLower(name); name == "content-type" || strings.HasPrefix(name, "x-amz-") {
			headers[name] = strings.TrimSpace(strings.Join(values, ","))
		}
	}
	var names, lines []string
	for name := range headers {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		lines = append(lines, name+":"+headers[name]+"\n")
	}
	list := strings.Join(names, ";")
	path := "/"
	if p := req.URL.EscapedPath(); p != "" {
		path = p
	}
	request := strings.Join([]string{req.Method, s.canonicalPath(path), canonicalQuery(req.URL.Query()), strings.Join(lines, ""), list, bodyHash}, "\n")
	scope := strings.Join([]string{stamp[:8], s.Region, s.Service, "aws4_request"}, "/")
	sum := sha256.Sum256([]byte(request))
	text := strings.Join([]string{"AWS4-HMAC-SHA256", stamp, scope, hex.EncodeToString(sum[:])}, "\n")
	key := []byte("AWS4" + c.SecretKey)
	for _, part := range []string{stamp[:8], s.Region, s.Service, "aws4_request"} {
		key = mac(key, part)
	}
	req.Header.Set("Authorization", fmt.Sprintf("AWS4-HMAC-SHA256 Credential=%s/%s, SignedHeaders=%s, Signature=%s",
		c.AccessKey, scope, list, hex.EncodeToString(mac(key, text))))
}

func mac(key []byte, text string) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(text))
	return h.Sum(nil)
}

// canonicalPath escapes each segment of the path that is sent once more.
func (s *Signer) canonicalPath(sent string) string {
	segments := strings.Split(sent, "/")
	for i := range segments {
		segments[i] = escape(segments[i])
	}
	return strings.Join(segments, "/")
}

func canonicalQuery(query url.Values) string {
	var pairs []string
	for name, values := range query {
		for _, v := range values {
			pairs = append(pairs, escape(name)+"="+escape(v))
		}
	}
	slices.Sort(pairs)
	return strings.Join(pairs, "&")
}

// escape escapes all but the unreserved characters of RFC 3986.
func escape(s string) string {
	return strings.ReplaceAll(url.QueryEscape(s), "+", "%20")
}
