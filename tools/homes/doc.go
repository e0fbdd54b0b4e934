// Package homes holds the tests of what deploy/ has for containers, and no code. It is a
// module of its own, because those who will read the files bring many packages.
//
// # What is guaranteed
//
//   - The API server's own code takes every Kubernetes object: decoding that knows each
//     field, defaults, validation, and not a word of warning. The pods keep to the
//     restricted Pod Security Standard. kustomize builds the whole.
//   - Compose's own loader takes the compose file, and what it mounts is there.
//   - BuildKit's own frontend takes the Containerfile without a word of its linter.
//   - Settings, commands, ports, paths of probes and times are those of this tree's weft.
//
// # What is not guaranteed
//
//   - That a cluster has room, a volume or a registry. Nothing is started here; the image
//     is, by the test in deploy/container.
package homes
