"""Records whose handler failed: retries, dead letters, poison keys."""
