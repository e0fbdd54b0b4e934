package homes

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"testing"

	"github.com/moby/buildkit/client/llb/sourceresolver"
	"github.com/moby/buildkit/frontend/dockerfile/dockerfile2llb"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"github.com/moby/buildkit/frontend/dockerui"
	dockerspec "github.com/moby/docker-image-spec/specs-go/v1"
	"github.com/opencontainers/go-digest"
	ocispecs "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/samuelhu324-dev/weft/internal/config"
)

// registry answers for images that are not asked for here.
type registry struct{ asked []string }

func (r *registry) ResolveImageConfig(_ context.Context, ref string, _ sourceresolver.Opt) (string, digest.Digest, []byte, error) {
	r.asked = append(r.asked, ref)
	text, err := json.Marshal(dockerspec.DockerOCIImage{Image: ocispecs.Image{
		Platform: ocispecs.Platform{OS: "linux", Architecture: "amd64"}, RootFS: ocispecs.RootFS{Type: "layers"}}})
	return ref, digest.FromBytes(text), text, err
}

// convert is what BuildKit makes of a Containerfile, and what its linter says.
func convert(t *testing.T, text string) (*dockerfile2llb.Result, []string, error) {
	t.Helper()
	var said []string
	r := &registry{}
	got, err := dockerfile2llb.Dockerfile2LLB(t.Context(), []byte(text), dockerfile2llb.ConvertOpt{
		MetaResolver:   r,
		TargetPlatform: &ocispecs.Platform{OS: "linux", Architecture: "arm64"},
		Config: dockerui.Config{
			BuildArgs:      map[string]string{"VERSION": "v1", "COMMIT": "c"},
			BuildPlatforms: []ocispecs.Platform{{OS: "linux", Architecture: "amd64"}},
		},
		Warn: func(rule, _, _, text string, at []parser.Range) {
			said = append(said, fmt.Sprintf("%s: %s %v", rule, text, at))
		},
	})
	if err == nil && !slices.Equal(r.asked, []string{"docker.io/library/golang:1.26"}) {
		t.Errorf("the build asks for %v", r.asked)
	}
	return got, said, err
}

func image(t *testing.T) *dockerspec.DockerOCIImage {
	t.Helper()
	got, said, err := convert(t, read(t, "container/Containerfile"))
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range said {
		t.Errorf("the linter: %s", s)
	}
	return got.Image
}

func TestImage(t *testing.T) {
	t.Parallel()
	c := image(t)
	if c.Architecture != "arm64" {
		t.Errorf("built for %s, want the platform that was asked for", c.Architecture)
	}
	if c.Config.User != "65532:65532" {
		t.Errorf("it runs as %q, want a number that is not root's", c.Config.User)
	}
	if port := strconv.Itoa(config.Default().HTTP.MetricsPort) + "/tcp"; len(c.Config.ExposedPorts) != 1 || c.Config.ExposedPorts[port] != struct{}{} {
		t.Errorf("ports %v", c.Config.ExposedPorts)
	}
	if len(c.Config.Volumes) > 0 || c.Config.StopSignal != "SIGTERM" {
		t.Errorf("volumes %v, stop signal %s", c.Config.Volumes, c.Config.StopSignal)
	}
	got := load(t, "Containerfile", config.Options{Environ: append([]string{"DATABASE_URL=postgres://x"}, c.Config.Env...)}, []string{"WEFT_HTTP_HOST"})
	if got.HTTP.Host != "0.0.0.0" {
		t.Errorf("it serves on %s, which nobody outside the container reaches", got.HTTP.Host)
	}
	asks(t, weft(t), "Containerfile", c.Config.Cmd)
}

// TestLinterSees holds that the check above sees something.
func TestLinterSees(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"FROM docker.io/library/golang:1.26\nCMD weft run\n":                                  "JSONArgsRecommended",
		"FROM docker.io/library/golang:1.26\nENV ELASTIC_PASSWORD=x\n":                        "SecretsUsedInArgOrEnv",
		"FROM docker.io/library/golang:1.26 as build\nFROM scratch\nCOPY --from=build /a /\n": "FromAsCasing",
	} {
		_, said, err := convert(t, text)
		if err != nil || !slices.ContainsFunc(said, func(s string) bool { return len(s) > len(want) && s[:len(want)] == want }) {
			t.Errorf("%q: got %q (%v), want %s", text, said, err, want)
		}
	}
	if _, _, err := convert(t, "FROM scratch\nCOPPY a b\n"); err == nil {
		t.Error("an unknown instruction is taken")
	}
}
