"""What the broker answers: one file per API, each with one `handle`."""
