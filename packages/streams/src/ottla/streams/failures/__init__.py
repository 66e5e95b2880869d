"""What happens to records whose handler failed: retries, dead letters, poison keys."""
