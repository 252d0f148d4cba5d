-- The record store. Times are integer microseconds since 1970 in UTC, before or after a leap second alike.
PRAGMA application_id = 0x61756466; -- "audf": stores made before 1.0 have another one

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

-- The records, which are at the same time the log that consumers follow (auditord/store/feed.py).
CREATE TABLE records (
    position INTEGER PRIMARY KEY AUTOINCREMENT, -- in the feed: grows with every stored version, never used twice
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
    others INTEGER, -- 1: it has further components than the next four; 2: an amount is too large for roll-ups
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

-- Former versions of records, until every consumer has passed them.
CREATE TABLE removals (
    position INTEGER PRIMARY KEY, -- of the change; a record that is still there has the same one
    former INTEGER NOT NULL,      -- the position of the former version
    record_id TEXT NOT NULL,
    start_time INTEGER NOT NULL,
    stop_time INTEGER,
    runtime INTEGER,
    site TEXT,
    user_group TEXT,
    user_name TEXT,
    more INTEGER,
    others INTEGER,
    cores INTEGER,
    memory INTEGER,
    gpu INTEGER,
    total_cpu INTEGER,
    score_set INTEGER,
    source_id INTEGER NOT NULL,
    document TEXT, -- NULL once all that count and sum have passed it: names are not kept
    -- What senders forward of the change, and who made it; NULL for nothing.
    operation TEXT CHECK (operation IN ('insert', 'close', 'replace')),
    changed_at INTEGER,
    changed_by INTEGER REFERENCES sources (source_id)
);

-- How far each consumer of the feed has read: all versions up to here.
CREATE TABLE consumers (
    name TEXT PRIMARY KEY,
    position INTEGER NOT NULL,
    updated_at INTEGER NOT NULL
) WITHOUT ROWID;
INSERT INTO consumers VALUES ('count:', 0, 0), ('rollup:0', 0, 0);

-- How many records have a value under a counted meta key, up to the position of the consumer `count:<key>`. All records
-- are counted under the key ''.
CREATE TABLE record_counts (
    meta_key TEXT NOT NULL,
    meta_value TEXT NOT NULL,
    records INTEGER NOT NULL,
    PRIMARY KEY (meta_key, meta_value)
) WITHOUT ROWID;

-- The sets of cells, each kept by the consumer `rollup:<number>`.
CREATE TABLE rolled_keys (
    number INTEGER PRIMARY KEY,  -- 0: by site, group and user
    meta_key TEXT UNIQUE,        -- whose values are told apart instead of users; '' stands for the number of cores
    filled_from INTEGER NOT NULL -- the first day of stop times whose records are in the cells
);
INSERT INTO rolled_keys VALUES (0, NULL, -719162);

-- Sums over finished records by day and month of their stop times. Days are numbers since 1970 in UTC. Records with `more`
-- are not in here.
CREATE TABLE rollups (
    level INTEGER NOT NULL,     -- 0: days; 1: days, users together; 2: months; 3: months, users together; + 4 x number
    period INTEGER NOT NULL,    -- the day, or the first one of the month
    user_name TEXT NOT NULL,    -- '' for none
    site TEXT NOT NULL,         -- the same
    user_group TEXT NOT NULL,   -- the same
    labels TEXT NOT NULL,       -- {"meta": values of the key}
    score_set INTEGER NOT NULL, -- of score_sets, 0 for none
    present INTEGER NOT NULL,   -- which components the records have: 1 Cores, 2 Memory, 4 GPU, 8 TotalCPU, added up
    records INTEGER NOT NULL,
    runtime INTEGER NOT NULL,   -- in seconds
    left_out INTEGER NOT NULL,  -- how many records are in no sum since their amounts are too large
    -- Of each component the amount, and amount times runtime as high * 2^40 + low; NULL if the records do not have it.
    cores INTEGER,
    cores_high INTEGER,
    cores_low INTEGER,
    memory INTEGER,
    memory_high INTEGER,
    memory_low INTEGER,
    gpu INTEGER,
    gpu_high INTEGER,
    gpu_low INTEGER,
    total_cpu INTEGER,
    total_cpu_high INTEGER,
    total_cpu_low INTEGER,
    -- The earliest and latest stop time of all records that ever were here, and of those that are gone.
    first_stop INTEGER,
    last_stop INTEGER,
    first_gone INTEGER,
    last_gone INTEGER,
    PRIMARY KEY (level, period, user_name, site, user_group, labels, score_set, present)
) WITHOUT ROWID;
CREATE INDEX rollups_without_records ON rollups (level) WHERE records = 0;

-- The same of all other components.
CREATE TABLE rollup_components (
    level INTEGER NOT NULL,
    period INTEGER NOT NULL,
    user_name TEXT NOT NULL,
    site TEXT NOT NULL,
    user_group TEXT NOT NULL,
    labels TEXT NOT NULL,
    score_set INTEGER NOT NULL,
    present INTEGER NOT NULL,
    component TEXT NOT NULL,
    records INTEGER NOT NULL,
    amount INTEGER NOT NULL,
    amount_high INTEGER NOT NULL,
    amount_low INTEGER NOT NULL,
    PRIMARY KEY (level, period, user_name, site, user_group, labels, score_set, present, component)
) WITHOUT ROWID;
CREATE INDEX rollup_components_without_records ON rollup_components (level) WHERE records = 0;

-- Records that came for a run which was stored with other content; the stored one stays. They are kept when their record
-- is released.
CREATE TABLE differences (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, -- in the order of arrival, the latest is the highest
    record_id TEXT NOT NULL,
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

-- What plugins keep between their runs, beside the records that it is about.
CREATE TABLE plugin_state (
    task TEXT PRIMARY KEY, -- the plugin's name in the configuration
    value BLOB NOT NULL,   -- JSON
    saved_at INTEGER NOT NULL
);

-- One row while `auditord database copy` fills this store: nobody may take its records for all of them.
CREATE TABLE unfinished_copy (
    source TEXT NOT NULL -- the store that is copied
);

-- Written and emptied again to see whether the disk takes a record.
CREATE TABLE probe (
    filling BLOB NOT NULL
);

-- The spools that deliver here, and how far each has come: an older copy of one of the two is noticed.
CREATE TABLE spools (
    spool_id TEXT PRIMARY KEY,
    generation INTEGER NOT NULL -- grows with every delivery, every start and stop of the spool's daemon
);

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

-- One row: the lake, an Apache Iceberg table of the records of many daemons, and which of its rows are released records.
CREATE TABLE lake (
    store_id TEXT NOT NULL,         -- of this store; the lake says the same of this daemon's records
    lake_id TEXT NOT NULL,          -- of the table that records are synced to; '' while nothing is synced
    given INTEGER NOT NULL,         -- the highest position up to which a batch was given
    released_in TEXT NOT NULL,      -- the table that has the released records; '' if there never were any
    location TEXT NOT NULL,         -- of that table, for messages
    snapshot_id INTEGER NOT NULL,   -- of the table, which has them
    sequence INTEGER NOT NULL,      -- the snapshot's place in the order of all
    release INTEGER NOT NULL,       -- rows of the daemon with a higher one are not released
    records INTEGER NOT NULL,       -- released records
    beside_rollups INTEGER NOT NULL, -- those of them with `more`
    first_stop INTEGER,             -- their stop times lie from here
    last_stop INTEGER               -- to here
);
INSERT INTO lake VALUES (lower(hex(randomblob(16))), '', 0, '', '', 0, 0, 0, 0, 0, NULL, NULL);

-- The ids of released records, which only the lake has, with all that the verdict on another record of the same id needs.
CREATE TABLE released (
    record_id TEXT PRIMARY KEY,
    start_time INTEGER NOT NULL,
    stop_time INTEGER NOT NULL,
    content INTEGER NOT NULL,
    release INTEGER NOT NULL, -- that its row in the lake has
    position INTEGER NOT NULL -- in the feed, which it keeps if it comes back
) WITHOUT ROWID;

-- Rows of the lake with a number of a release that do not count: the record was changed meanwhile, or is back in this
-- database.
CREATE TABLE recalled (
    record_id TEXT NOT NULL,
    release INTEGER NOT NULL,
    stop_time INTEGER NOT NULL, -- of the row
    PRIMARY KEY (record_id, release)
) WITHOUT ROWID;
