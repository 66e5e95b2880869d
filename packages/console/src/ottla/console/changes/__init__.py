"""Changes of a cluster: planned from a form, shown before they are done, and written to the audit log."""
