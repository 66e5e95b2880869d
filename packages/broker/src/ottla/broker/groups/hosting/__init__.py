"""The groups that this broker coordinates."""
