-- The spools that deliver here, and how far each has come: an older copy of one of the two is noticed.
CREATE TABLE spools (
    spool_id TEXT PRIMARY KEY,
    generation INTEGER NOT NULL -- grows with every delivery, every start and stop of the spool's daemon
);
