"""The schema of the record store in SQLite, as numbered steps."""
