"""Rows of databases as records: tables that are followed, and outboxes that are emptied. On SQLAlchemy."""
