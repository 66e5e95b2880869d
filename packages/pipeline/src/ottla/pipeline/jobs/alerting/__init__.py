"""Alerts: rules about metrics, and the state of each series."""
