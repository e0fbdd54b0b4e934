// Package sigv4 is an example of an [http.RoundTripper] that signs requests as Amazon's services
// ask for it (AWS Signature Version 4), so that weft, as a library, writes to an OpenSearch there:
//
//	transport, err := elastic.NewTransport(elastic.Access{})
//	sink, err := elastic.New(elastic.Config{
//		URLs: []string{"https://search-x.eu-west-1.es.amazonaws.com"}, Index: "blocks",
//		Transport: &sigv4.Signer{Region: "eu-west-1", Service: "es", Credentials: fromEnvironment, Next: transport},
//	}, log, registry, "blocks")
//
// Copy it, or put the signer of Amazon's own library in its place. `weft run` has no setting for it:
// put a signing proxy on its host before it.
//
// # What is guaranteed
//
//   - Each request carries the signature of its method, path, query, host, time and body. The tests
//     compare with the signatures of Amazon's documentation.
//   - Credentials are asked for with each request, so that those of a role may change.
//
// # What is not guaranteed
//
//   - Streams: the body is read twice, once for its hash. A request without GetBody is kept in memory.
//   - That the service was tried: no account is part of the tests.
package sigv4
