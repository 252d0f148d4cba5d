-- The daemons of this database, as they note themselves every half a minute: for `auditord status --all`.
CREATE TABLE auditord.daemons (
    spool_id text COLLATE "C" PRIMARY KEY,
    host text COLLATE "C" NOT NULL,
    process integer NOT NULL,
    version text COLLATE "C" NOT NULL,
    state_dir text COLLATE "C" NOT NULL,
    started_at timestamptz NOT NULL,
    seen_at timestamptz NOT NULL, -- by the clock of the server
    ended boolean NOT NULL,       -- it ended in order
    queued bigint NOT NULL,       -- entries in its queues
    oldest timestamptz,           -- when the oldest of them was received
    quarantined bigint NOT NULL
);
