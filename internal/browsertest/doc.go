// Package browsertest tests the operator's page in Chromium, as an operator uses it: two
// processes of the binary on real servers, with the least rights in Postgres, and a browser that
// clicks and types. Its tests have the build tag browser and need the program chromium. It has
// no code of its own.
//
// testdata/axe.min.js is axe-core, which looks for what keeps people with disabilities from a
// page. It is under the Mozilla Public License 2.0 (testdata/axe.LICENSE) and is in no binary.
package browsertest
