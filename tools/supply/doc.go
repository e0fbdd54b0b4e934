// Package supply holds the tests of how this tree takes in what others wrote, and no code;
// its commands make a release's bills of materials and look for known vulnerabilities. It is
// a module of its own, because only they need what they import.
//
// # What is guaranteed
//
//   - Updates are proposed for every Go module, the Python client's requirements, the images
//     and the actions of the workflows.
//   - A bill of materials is valid by CycloneDX's schema and names every module of its binary.
//   - A database of vulnerabilities that cannot be read is never a pass.
//
// # What is not guaranteed
//
//   - That a module without an advisory has no flaw.
package supply
