package stack

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
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

// engine is a search server that the stack can start.
type engine struct {
	artifact
	java int  // the oldest JDK that runs it
	open bool // OpenSearch
}

// DefaultElastic and DefaultPostgres are what is started unless another version is asked for.
const (
	DefaultElastic  = "8.19.7"
	DefaultPostgres = 17
)

// engines lists the search servers, by their names for people.
func engines() []engine {
	elastic := func(version, sha256 string, size int64, java int) engine {
		return engine{artifact{
			name: "Elasticsearch " + version, coordinates: "org.elasticsearch.distribution.integ-test-zip:elasticsearch:" + version + ":zip",
			sha256: sha256, size: size, unpack: unpackZip, proof: "bin/elasticsearch",
		}, java, false}
	}
	open := func(version, sha256 string, size int64, java int) engine {
		return engine{artifact{
			name: "OpenSearch " + version, coordinates: "org.opensearch.distribution.integ-test-zip:opensearch:" + version + ":zip",
			sha256: sha256, size: size, unpack: unpackZip, proof: "bin/opensearch",
		}, java, true}
	}
	return []engine{
		elastic(DefaultElastic, "cb7f86fb6e68e85ef6f531ae5c68458ecfe42371150403b22b2ed21381581cbb", 97_670_310, 17),
		elastic("9.2.0", "bf44938a0490ba2a303d39c9cb64b38963dd08c812ce93e10816e878585bcb6b", 99_253_337, 21),
		open("2.19.3", "760530e522de0a9f06380d4a4a43dfd83c31fa8911f41745513ce715ed5dfd03", 51_396_460, 17),
		open("3.3.0", "c3a6bf825ea05b8d9fe3758dad70ed198cf9c365700895165d310a0a9e7f48a5", 78_638_524, 21),
	}
}

// engineOf finds the search server of a version; at most one of the two may be given.
func engineOf(elastic, open string) (engine, error) {
	if elastic != "" && open != "" {
		return engine{}, errors.New("a version of Elasticsearch and one of OpenSearch: name one of them")
	}
	name := "Elasticsearch " + cmp.Or(elastic, DefaultElastic)
	if open != "" {
		name = "OpenSearch " + open
	}
	var names []string
	for _, e := range engines() {
		if e.name == name {
			return e, nil
		}
		names = append(names, e.name)
	}
	return engine{}, fmt.Errorf("%s is not known to the stack: want one of %s", name, strings.Join(names, ", "))
}

// pin is a file and what it holds.
type pin struct {
	sha256 string
	size   int64
}

// postgresPins are by version, and then by the processor that the file is for.
func postgresPins() map[string]map[string]pin {
	return map[string]map[string]pin{
		"14.19": {"amd64": {"8de92fe6d209f864bfae82cb881e416716d139961cc06dbe18629f150a63c71b", 14_506_592}},
		"15.14": {"amd64": {"e8a9d549630362bbf88fa3e8de95b7a6d96bfd367e75db8349e9813eef596fef", 14_588_601}},
		"16.10": {
			"amd64": {"17a8ded28bde97fe66247387806af30ee26190fc96503c47c3eaa4fcbdcff8b6", 14_723_345},
			"arm64": {"96e6e62674dfbb2fb16081a05525c0454290e163a8d7ae225512cf60ee908371", 13_708_440},
		},
		"17.6": {
			"amd64": {"23da5a044b4fb7a5a081a45008c95749c873305328d73f86aefd56922ce1d29d", 14_894_072},
			"arm64": {"84427ea54a5238247924ef3b0f940e7d027e58760f19d7325242e50d22fa014a", 13_894_039},
		},
		"18.1": {
			"amd64": {"65d0723e0274ad3ec6230dcbdfe034af6ee096fce15a77b0f9b8be71d2702934", 14_949_819},
			"arm64": {"ea0f16b754fc0a10d9d8993bbd426c20f8c709b318b28e49b42d9cac1c958b8f", 13_966_675},
		},
	}
}

// postgresArtifact returns the server of a major version for this machine.
func postgresArtifact(major int, goos, goarch string) (artifact, error) {
	if goos != "linux" || goarch != "amd64" && goarch != "arm64" {
		return artifact{}, fmt.Errorf("the stack starts servers on linux/amd64 and linux/arm64 only, not on %s/%s: %s", goos, goarch, useOwnServers)
	}
	var majors []string
	for version, files := range postgresPins() {
		p, ok := files[goarch]
		if !ok {
			continue
		}
		name, _, _ := strings.Cut(version, ".")
		majors = append(majors, name)
		if name != strconv.Itoa(major) {
			continue
		}
		processor := map[string]string{"amd64": "amd64", "arm64": "arm64v8"}[goarch]
		return artifact{
			name: "PostgreSQL " + version, sha256: p.sha256, size: p.size, unpack: unpackPostgresJar, proof: "bin/postgres",
			coordinates: "io.zonky.test.postgres:embedded-postgres-binaries-linux-" + processor + ":" + version + ".0:jar",
		}, nil
	}
	slices.Sort(majors)
	return artifact{}, fmt.Errorf("PostgreSQL %d is not known to the stack: want one of %s", major, strings.Join(majors, ", "))
}
