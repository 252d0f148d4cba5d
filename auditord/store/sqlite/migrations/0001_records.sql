-- The record store. Times are integer microseconds since 1970 in UTC, before or after a leap second alike.
PRAGMA application_id = 0x61756472; -- "audr"

-- Who brought records, each pair once: a number in the record takes one byte, the texts would take forty.
CREATE TABLE sources (
    source_id INTEGER PRIMARY KEY,
    principal TEXT, -- task:<instance>, user:<name> for a command, or the authenticated name of a client
    agent TEXT      -- the client's User-Agent
);
CREATE INDEX sources_by_name ON sources (principal, agent);

-- The scores of each record's components as one number, for sums over scores: nodes of one type share them.
CREATE TABLE score_sets (
    score_set INTEGER PRIMARY KEY,
    scores TEXT NOT NULL UNIQUE -- [[component, [{"name": score, "value": number}, …]], …], components without left out
);

CREATE TABLE records (
    seq INTEGER PRIMARY KEY, -- in the order of arrival: new rows are appended, pages are filled
    record_id TEXT NOT NULL,
    start_time INTEGER NOT NULL,
    stop_time INTEGER, -- NULL while open
    runtime INTEGER GENERATED ALWAYS AS ((stop_time - start_time) / 1000000) VIRTUAL, -- whole seconds, toward zero
    -- First value of the first meta key that the record has: site_id or site, group_id or group, user_id or user.
    site TEXT,
    user_group TEXT,
    user_name TEXT,
    -- 1: the columns for site, group, user or for the amounts do not tell all: several values, the second key, or several
    -- components of one name. A filter then looks into the document.
    more INTEGER,
    -- Amounts of the components Cores, Memory, GPU and TotalCPU, summed where a name occurs more than once.
    cores INTEGER,
    memory INTEGER,
    gpu INTEGER,
    total_cpu INTEGER,
    content INTEGER NOT NULL,     -- hash of meta (without provenance) and components
    received_at INTEGER NOT NULL, -- of the first arrival
    updated_at INTEGER,           -- of the last change, NULL if there was none
    source_id INTEGER NOT NULL REFERENCES sources,
    score_set INTEGER REFERENCES score_sets, -- NULL: no component has a score
    document TEXT NOT NULL        -- the wire text, byte for byte as clients read it
);
CREATE UNIQUE INDEX records_by_id ON records (record_id);
-- Serves the default order without sorting, and every filter on times, site, group and user. Sums over a period are read
-- from it alone: the table has twenty times as many pages to pass.
CREATE INDEX records_by_stop ON records (
    stop_time, record_id, start_time, site, user_group, user_name, more, cores, memory, gpu, total_cpu, score_set
);
CREATE INDEX records_by_start ON records (start_time);
-- Sums look into the documents of these few.
CREATE INDEX records_with_more ON records (stop_time) WHERE more IS NOT NULL;

-- Records that came for a run which was stored with other content; the stored one stays.
CREATE TABLE differences (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, -- in the order of arrival, the latest is the highest
    record_id TEXT NOT NULL REFERENCES records (record_id) ON DELETE CASCADE,
    content INTEGER NOT NULL,
    seen_at INTEGER NOT NULL,
    source_id INTEGER NOT NULL REFERENCES sources,
    offered TEXT NOT NULL,
    UNIQUE (record_id, content) -- collected again and again, it is still one difference
);

-- What records were before somebody corrected, closed or deleted them on purpose.
CREATE TABLE versions (
    number INTEGER PRIMARY KEY AUTOINCREMENT, -- of one record, a later change has the higher one
    record_id TEXT NOT NULL, -- there may be no such record any more
    action TEXT NOT NULL CHECK (action IN ('correct', 'close', 'delete')),
    reason TEXT NOT NULL,
    changed_at INTEGER NOT NULL,
    changed_by INTEGER NOT NULL REFERENCES sources (source_id),
    -- The record until then.
    received_at INTEGER NOT NULL,
    updated_at INTEGER,
    source_id INTEGER NOT NULL REFERENCES sources,
    document TEXT NOT NULL
);
CREATE INDEX versions_by_record ON versions (record_id);

-- What senders must carry on of the changes that clients made; empty while no sender takes them.
CREATE TABLE outbox (
    number INTEGER PRIMARY KEY AUTOINCREMENT, -- the order; never used twice
    operation TEXT NOT NULL CHECK (operation IN ('insert', 'close', 'replace')),
    document TEXT NOT NULL,                   -- the wire text of the record after the change
    received_at INTEGER NOT NULL,
    source_id INTEGER NOT NULL REFERENCES sources
);

-- What plugins keep between their runs, beside the records that it is about.
CREATE TABLE plugin_state (
    task TEXT PRIMARY KEY, -- the plugin's name in the configuration
    value BLOB NOT NULL,   -- JSON
    saved_at INTEGER NOT NULL
);

-- How many records have a value under a counted meta key, as far as it has been written down.
CREATE TABLE record_counts (
    meta_key TEXT NOT NULL,
    meta_value TEXT NOT NULL,
    records INTEGER NOT NULL,
    PRIMARY KEY (meta_key, meta_value)
) WITHOUT ROWID;

-- The meta keys whose values are counted, and '' for all records.
CREATE TABLE counted_keys (
    meta_key TEXT PRIMARY KEY,
    up_to INTEGER NOT NULL -- the seq of the last record that has been written down
) WITHOUT ROWID;
INSERT INTO counted_keys VALUES ('', 0);

-- One row while `auditord database copy` fills this store: nobody may take its records for all of them.
CREATE TABLE unfinished_copy (
    source TEXT NOT NULL -- the store that is copied
);

-- Written and emptied again to see whether the disk takes a record.
CREATE TABLE probe (
    filling BLOB NOT NULL
);
