// Command sbom writes the bill of materials of a Go binary to its standard output, as
// CycloneDX 1.6 in JSON:
//
//	go -C tools/supply run ./sbom -version 1.2.3 /path/of/weft
//
// It reads what the linker recorded in the binary, for whatever platform that is: each
// module with its version and the checksum of go.sum, and Go itself. The same binary,
// version and SOURCE_DATE_EPOCH give the same bytes.
package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/google/uuid"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "sbom:", err)
		os.Exit(1)
	}
}

func run(args []string, out io.Writer) error {
	flags := flag.NewFlagSet("sbom", flag.ContinueOnError)
	version := flags.String("version", "unknown", "`VERSION` of the binary")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() != 1 {
		return errors.New("name one binary")
	}
	bom, err := describe(flags.Arg(0), *version)
	if err != nil {
		return err
	}
	if epoch := os.Getenv("SOURCE_DATE_EPOCH"); epoch != "" {
		seconds, err := strconv.ParseInt(epoch, 10, 64)
		if err != nil {
			return fmt.Errorf("SOURCE_DATE_EPOCH: %w", err)
		}
		bom.Metadata.Timestamp = time.Unix(seconds, 0).UTC().Format(time.RFC3339)
	}
	return cdx.NewBOMEncoder(out, cdx.BOMFileFormatJSON).SetPretty(true).EncodeVersion(bom, cdx.SpecVersion1_6)
}

// describe returns the bill of materials of the binary at path.
func describe(path, version string) (*cdx.BOM, error) {
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		return nil, err
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(data)

	main := component(cdx.ComponentTypeApplication, info.Main.Path, version)
	main.Name = "weft"
	main.Hashes = &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: hex.EncodeToString(sum[:])}}
	main.Licenses = &cdx.Licenses{{License: &cdx.License{ID: "Apache-2.0"}}}
	main.Properties = settings(info)

	std := component(cdx.ComponentTypeLibrary, "std", strings.TrimPrefix(info.GoVersion, "go"))
	components := []cdx.Component{std}
	needs := []string{std.BOMRef}
	for _, dep := range info.Deps {
		if dep.Replace != nil {
			dep = dep.Replace
		}
		c := component(cdx.ComponentTypeLibrary, dep.Path, dep.Version)
		if c.Hashes, err = checksum(dep.Sum); err != nil {
			return nil, fmt.Errorf("%s: %w", dep.Path, err)
		}
		components = append(components, c)
		needs = append(needs, c.BOMRef)
	}
	slices.Sort(needs)

	bom := cdx.NewBOM()
	// The same for the same binary, and for no other.
	bom.SerialNumber = uuid.NewSHA1(uuid.NameSpaceURL, append([]byte(main.BOMRef), sum[:]...)).URN()
	bom.Metadata = &cdx.Metadata{Component: &main}
	bom.Components = &components
	bom.Dependencies = &[]cdx.Dependency{{Ref: main.BOMRef, Dependencies: &needs}}
	return bom, nil
}

func component(kind cdx.ComponentType, path, version string) cdx.Component {
	purl := "pkg:golang/" + path + "@" + strings.ReplaceAll(version, "+", "%2B")
	return cdx.Component{BOMRef: purl, Type: kind, Name: path, Version: version, PackageURL: purl}
}

// checksum turns the h1: form of go.sum into what scanners know: it is a SHA-256, too.
func checksum(sum string) (*[]cdx.Hash, error) {
	if sum == "" {
		return nil, nil
	}
	raw, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(sum, "h1:"))
	if err != nil || len(raw) != sha256.Size {
		return nil, fmt.Errorf("checksum %q: not of the form of go.sum", sum)
	}
	return &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: hex.EncodeToString(raw)}}, nil
}

// settings keeps what of the build changes the binary.
func settings(info *debug.BuildInfo) *[]cdx.Property {
	var all []cdx.Property
	for _, s := range info.Settings {
		if strings.HasPrefix(s.Key, "GO") || s.Key == "CGO_ENABLED" {
			all = append(all, cdx.Property{Name: "cdx:gomod:build:env:" + s.Key, Value: s.Value})
		}
	}
	return &all
}
