-- The daemons of this database, as they note themselves every half a minute: for `auditord status --all`.

CREATE TABLE daemons (
    spool_id TEXT PRIMARY KEY,
    host TEXT NOT NULL,
    process INTEGER NOT NULL,
    version TEXT NOT NULL,
    state_dir TEXT NOT NULL,
    started_at INTEGER NOT NULL,
    seen_at INTEGER NOT NULL,
    ended INTEGER NOT NULL,  -- 1: it ended in order
    queued INTEGER NOT NULL, -- entries in its queues
    oldest INTEGER,          -- when the oldest of them was received
    quarantined INTEGER NOT NULL
);
