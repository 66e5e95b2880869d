"""TLS of the broker's listeners and of its connections to other brokers."""
