-- What senders must carry on of the changes that clients made; empty while no sender takes them.
CREATE TABLE outbox (
    number INTEGER PRIMARY KEY AUTOINCREMENT, -- the order; never used twice
    operation TEXT NOT NULL CHECK (operation IN ('insert', 'close', 'replace')),
    document TEXT NOT NULL,                   -- the wire text of the record after the change
    received_at INTEGER NOT NULL,
    source_id INTEGER NOT NULL REFERENCES sources
);
