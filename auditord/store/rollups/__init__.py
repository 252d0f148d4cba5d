"""Roll-ups: sums by day and month, maintained with the records; see :mod:`auditord.store.rollups.folding`."""
