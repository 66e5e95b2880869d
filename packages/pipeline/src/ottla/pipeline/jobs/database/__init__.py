"""Rows of databases as records: followed tables and outboxes. Based on SQLAlchemy."""
