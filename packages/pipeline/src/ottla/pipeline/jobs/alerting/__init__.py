"""Alerts: rules about metrics, and what is known of each series."""
