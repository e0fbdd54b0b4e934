// Package kafkatest follows docs/kafka.md: a broker of Kafka, a worker of Kafka Connect with
// Debezium's connector, and weft beside them on the same outbox. Its tests have the build tag
// kafka; make test-kafka brings what they need. It has no code of its own.
package kafkatest
