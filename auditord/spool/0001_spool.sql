-- The daemon's own memory: what is on its way, how far each source has been read, what could not be handled.
-- Instants are microseconds since 1970 in UTC; JSON and wire texts are UTF-8 in BLOBs.
PRAGMA application_id = 0x61756473; -- "auds"

-- Changes on their way to a destination, one row per destination; within one record id in the order of entry_id.
CREATE TABLE queue (
    entry_id     INTEGER PRIMARY KEY AUTOINCREMENT, -- never used twice: it is the order
    sender       TEXT    NOT NULL,
    record_id    TEXT    NOT NULL,
    operation    TEXT    NOT NULL CHECK (operation IN ('insert', 'close', 'replace')),
    body         BLOB    NOT NULL, -- the record's wire text; of a close, its stop time
    alternate_id TEXT,
    received_at  INTEGER NOT NULL,
    principal    TEXT,
    agent        TEXT,
    attempts     INTEGER NOT NULL DEFAULT 0,
    due_at       INTEGER NOT NULL, -- not to be tried before; entries of the same record id wait behind it; 0: new
    limits       BLOB -- JSON: the client's roles, to check against the stored record first; NULL: nothing to check
);

CREATE INDEX queue_by_record ON queue (sender, record_id);
CREATE INDEX queue_by_sender ON queue (sender, entry_id);
CREATE INDEX queue_postponed ON queue (sender, due_at) WHERE attempts > 0;

-- What could not be handled, until somebody retries or discards it.
CREATE TABLE quarantine (
    quarantine_id  INTEGER PRIMARY KEY AUTOINCREMENT,
    stage          TEXT    NOT NULL CHECK (stage IN ('job', 'record', 'entry', 'body')),
    task           TEXT    NOT NULL, -- the collector; of an entry, the sender; of a body, 'api'
    source_id      TEXT    NOT NULL,
    variant        BLOB    NOT NULL, -- of a record or an entry: what tells it from others of its id, such as another run
    raw            BLOB    NOT NULL,
    reason         TEXT    NOT NULL,
    quarantined_at INTEGER NOT NULL, -- the latest occurrence
    occurrences    INTEGER NOT NULL DEFAULT 1,
    operation      TEXT, -- of an entry: what to queue again
    alternate_id   TEXT,
    received_at    INTEGER,
    principal      TEXT,
    agent          TEXT,
    route          TEXT, -- of a body: where it was posted
    size           INTEGER NOT NULL, -- of raw, in bytes
    limits         BLOB, -- of an entry and a body, see queue
    UNIQUE (stage, task, source_id, variant)
);

-- How many bodies there are, how large, and which are the oldest, without a look at the bodies.
CREATE INDEX quarantine_bodies ON quarantine (stage, quarantined_at, quarantine_id, size) WHERE stage = 'body';

-- How far each collector has read its source.
CREATE TABLE checkpoint (
    task     TEXT PRIMARY KEY,
    value    BLOB    NOT NULL,
    saved_at INTEGER NOT NULL
);

-- The record_prefix of each collector's last run, and the start of the first run with it.
CREATE TABLE prefix (
    task   TEXT PRIMARY KEY,
    prefix TEXT NOT NULL,
    since  INTEGER -- NULL: it never had another
);

-- Keys that a collector asked to remember for a while.
CREATE TABLE seen (
    task       TEXT    NOT NULL,
    key        TEXT    NOT NULL,
    expires_at INTEGER NOT NULL,
    PRIMARY KEY (task, key)
) WITHOUT ROWID;

CREATE INDEX seen_by_expiry ON seen (expires_at);

-- Values that a collector carries from run to run.
CREATE TABLE pending (
    task  TEXT NOT NULL,
    key   TEXT NOT NULL,
    value BLOB NOT NULL,
    PRIMARY KEY (task, key)
) WITHOUT ROWID;

-- What a plugin keeps between its runs.
CREATE TABLE plugin_state (
    task     TEXT PRIMARY KEY,
    value    BLOB    NOT NULL,
    saved_at INTEGER NOT NULL
);

-- How the last runs of each instance ended, for commands that look on while the daemon runs.
CREATE TABLE run (
    number      INTEGER PRIMARY KEY, -- grows
    task        TEXT    NOT NULL,
    started_at  INTEGER NOT NULL,
    duration    INTEGER NOT NULL, -- microseconds
    error       TEXT,
    records     INTEGER NOT NULL,
    quarantined INTEGER NOT NULL,
    skipped     BLOB    NOT NULL -- JSON: count by reason
);
CREATE INDEX run_task ON run (task, number);

-- What is known of each instance beyond those runs.
CREATE TABLE instance (
    task            TEXT PRIMARY KEY,
    kind            TEXT    NOT NULL,
    last_success_at INTEGER,
    failures        INTEGER NOT NULL, -- since the last success
    enabled_at      INTEGER -- of a plugin; NULL: it is not enabled
);

-- Counts that survive a restart.
CREATE TABLE counter (
    name  TEXT PRIMARY KEY,
    value INTEGER NOT NULL
) WITHOUT ROWID;

-- Entries of the record store's outbox that have been queued here and may still be there: they are not queued again.
CREATE TABLE taken_over (
    number    INTEGER NOT NULL, -- in the outbox
    record_id TEXT    NOT NULL, -- so that another store's numbers do no harm
    PRIMARY KEY (number, record_id)
) WITHOUT ROWID;

-- One row: the id of this spool in the record store, and the generation, which the store has as well.
CREATE TABLE generation (
    spool_id TEXT    NOT NULL,
    number   INTEGER NOT NULL -- grows with every delivery, start and stop; 0: not paired with any store yet
);
INSERT INTO generation VALUES (lower(hex(randomblob(16))), 0);
