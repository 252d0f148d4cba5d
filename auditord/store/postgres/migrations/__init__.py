"""The schema of the record store in PostgreSQL, as numbered steps."""
