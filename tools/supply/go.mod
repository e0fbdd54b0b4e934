module github.com/samuelhu324-dev/weft/tools/supply

go 1.26.0

// `go -C tools/supply tool govulncheck -C ../.. ./...` also follows calls.
tool (
	github.com/samuelhu324-dev/weft/tools/supply/vulnerabilities
	golang.org/x/vuln/cmd/govulncheck
)

require (
	github.com/CycloneDX/cyclonedx-go v0.12.0
	github.com/google/uuid v1.6.0
	github.com/santhosh-tekuri/jsonschema/v6 v6.0.3
	go.yaml.in/yaml/v3 v3.0.5
	golang.org/x/mod v0.42.0
	golang.org/x/vuln v1.9.0
)

require (
	golang.org/x/sync v0.24.0 // indirect
	golang.org/x/sys v0.49.0 // indirect
	golang.org/x/telemetry v0.0.0-20261010193011-f71dc92da45e // indirect
	golang.org/x/text v0.43.0 // indirect
	golang.org/x/tools v0.52.0 // indirect
)
