package stack

import (
	"fmt"
	"strings"
)

// artifact is a server as it is published: what to ask mvn for, and what must come back.
type artifact struct {
	name        string // for people
	coordinates string // group:artifact:version:packaging
	sha256      string
	size        int64
	unpack      func(archive, dir string) error
	proof       string // a file that an unpacked server has
}

func (a artifact) parts() (group, id, version, packaging string) {
	parts := strings.SplitN(a.coordinates, ":", 4)
	return parts[0], parts[1], parts[2], parts[3]
}

func (a artifact) fileName() string {
	_, id, version, packaging := a.parts()
	return id + "-" + version + "." + packaging
}

// dirName differs for every pinned content, so a new pin never meets an old cache.
func (a artifact) dirName() string {
	_, id, version, _ := a.parts()
	return id + "-" + version + "-" + a.sha256[:12]
}

func (a artifact) megabytes() string {
	return fmt.Sprintf("%d MB", (a.size+500_000)/1_000_000)
}

func elasticArtifact() artifact {
	return artifact{
		name:        "Elasticsearch 8.19.7",
		coordinates: "org.elasticsearch.distribution.integ-test-zip:elasticsearch:8.19.7:zip",
		sha256:      "cb7f86fb6e68e85ef6f531ae5c68458ecfe42371150403b22b2ed21381581cbb",
		size:        97_670_310,
		unpack:      unpackZip,
		proof:       "bin/elasticsearch",
	}
}

func postgresArtifact(goos, goarch string) (artifact, error) {
	a := artifact{name: "PostgreSQL 17.6", unpack: unpackPostgresJar, proof: "bin/postgres"}
	const coordinates = "io.zonky.test.postgres:embedded-postgres-binaries-linux-%s:17.6.0:jar"
	switch goos + "/" + goarch {
	case "linux/amd64":
		a.coordinates = fmt.Sprintf(coordinates, "amd64")
		a.sha256 = "23da5a044b4fb7a5a081a45008c95749c873305328d73f86aefd56922ce1d29d"
		a.size = 14_894_072
	case "linux/arm64":
		a.coordinates = fmt.Sprintf(coordinates, "arm64v8")
		a.sha256 = "84427ea54a5238247924ef3b0f940e7d027e58760f19d7325242e50d22fa014a"
		a.size = 13_894_039
	default:
		return artifact{}, fmt.Errorf("the stack starts servers on linux/amd64 and linux/arm64 only, not on %s/%s: %s", goos, goarch, useOwnServers)
	}
	return a, nil
}
