-- Entries of the record store's outbox that have been queued here and may still be there: they are not queued again.
CREATE TABLE taken_over (
    number    INTEGER NOT NULL, -- in the outbox
    record_id TEXT    NOT NULL, -- so that another store's numbers do no harm
    PRIMARY KEY (number, record_id)
) WITHOUT ROWID;
