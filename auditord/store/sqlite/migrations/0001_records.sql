-- The record store. Times are integer microseconds since 1970 in UTC, without leap seconds.
PRAGMA application_id = 0x61756466; -- "audf"; stores made before version 1.0 have another id

-- The origins of records, each pair once: a number in the record takes one byte, the texts would take forty.
CREATE TABLE origins (
    origin_id INTEGER PRIMARY KEY,
    principal TEXT, -- task:<instance>, user:<name> for a command, or the authenticated name of a client
    agent TEXT      -- the client's User-Agent
);
CREATE INDEX origins_by_name ON origins (principal, agent);

-- The sets of scores of records' components, for sums over scores. Records from one type of node share a set.
CREATE TABLE score_sets (
    score_set INTEGER PRIMARY KEY,
    scores TEXT NOT NULL UNIQUE -- [[component, [{"name": score, "value": number}, …]], …], only components with scores
);

-- The records, which are also the log that consumers follow (auditord/store/feed.py).
CREATE TABLE records (
    position INTEGER PRIMARY KEY AUTOINCREMENT, -- in the feed; grows with every stored version, never reused
    record_id TEXT NOT NULL,
    start_time INTEGER NOT NULL,
    stop_time INTEGER, -- NULL while open
    runtime INTEGER GENERATED ALWAYS AS ((stop_time - start_time) / 1000000) VIRTUAL, -- whole seconds, toward zero
    -- The first value of the first key that the record has: site_id or site, group_id or group, user_id or user.
    site TEXT,
    user_group TEXT,
    user_name TEXT,
    -- 1 if the columns for site, group, user or amounts are incomplete: several values, an older key, or several
    -- components with one name. Filters then read the document.
    more INTEGER,
    others INTEGER, -- 1: it has components other than the next seven; 2: an amount is too large for roll-ups
    -- Amounts of the components Cores, Memory, GPU and TotalCPU, summed if a name occurs more than once.
    cores INTEGER,
    memory INTEGER,
    gpu INTEGER,
    total_cpu INTEGER,
    -- The totals CoreSeconds, MemorySeconds and GPUSeconds, which a record has instead of Cores, Memory and GPU. In cells,
    -- they are part of the sums of amount times runtime.
    core_seconds INTEGER,
    memory_seconds INTEGER,
    gpu_seconds INTEGER,
    content INTEGER NOT NULL,     -- hash of meta (without provenance) and components
    received_at INTEGER NOT NULL, -- when it first arrived
    updated_at INTEGER,           -- when it was last changed; NULL if never
    origin_id INTEGER NOT NULL REFERENCES origins,
    score_set INTEGER REFERENCES score_sets, -- NULL: no component has a score
    document TEXT NOT NULL        -- the wire text, byte for byte as clients read it
);
CREATE UNIQUE INDEX records_by_id ON records (record_id);
-- Serves the default order without sorting, and every filter on times, site, group and user. Sums over a period only
-- read this index, since the table has twenty times as many pages.
CREATE INDEX records_by_stop ON records (
    stop_time, record_id, start_time, site, user_group, user_name, more, cores, memory, gpu, total_cpu, core_seconds,
    memory_seconds, gpu_seconds, score_set
);
-- Tells whether there are such records: sums read these columns only then.
CREATE INDEX records_with_totals ON records (stop_time)
WHERE core_seconds IS NOT NULL OR memory_seconds IS NOT NULL OR gpu_seconds IS NOT NULL;
CREATE INDEX records_by_start ON records (start_time);
-- Sums read the documents of these few records.
CREATE INDEX records_with_more ON records (stop_time) WHERE more IS NOT NULL;

-- Former versions of records, until every consumer has passed them.
CREATE TABLE removals (
    position INTEGER PRIMARY KEY, -- the position of the change; a record that still exists has the same
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
    core_seconds INTEGER,
    memory_seconds INTEGER,
    gpu_seconds INTEGER,
    score_set INTEGER,
    origin_id INTEGER NOT NULL,
    document TEXT, -- NULL once all counts and roll-ups have passed it, so that names are not kept
    -- The operation that senders forward, and who made it; NULL for none.
    operation TEXT CHECK (operation IN ('insert', 'close', 'replace')),
    changed_at INTEGER,
    changed_by INTEGER REFERENCES origins (origin_id)
);
CREATE INDEX removals_with_names ON removals (position) WHERE document IS NOT NULL;

-- The consumers of the feed, and the positions up to which they have read all versions.
CREATE TABLE consumers (
    name TEXT PRIMARY KEY,
    position INTEGER NOT NULL,
    updated_at INTEGER NOT NULL
) WITHOUT ROWID;
INSERT INTO consumers VALUES ('count:', 0, 0), ('rollup:0', 0, 0);

-- The number of records with a value under a counted meta key, up to the position of the consumer `count:<key>`. The
-- key '' counts all records.
CREATE TABLE record_counts (
    meta_key TEXT NOT NULL,
    meta_value TEXT NOT NULL,
    records INTEGER NOT NULL,
    PRIMARY KEY (meta_key, meta_value)
) WITHOUT ROWID;

-- The sets of cells, each filled by the consumer `rollup:<number>`.
CREATE TABLE rolled_keys (
    number INTEGER PRIMARY KEY,  -- 0: by site, group and user
    meta_key TEXT UNIQUE,        -- groups cells instead of users; NULL for number 0, '' for the number of cores
    filled_from INTEGER NOT NULL -- the first day of stop times whose records are in the cells
);
INSERT INTO rolled_keys VALUES (0, NULL, -719162);

-- Sums over finished records by day and month of their stop times. Days are numbers since 1970, in UTC. Records with
-- `more` are left out.
CREATE TABLE rollups (
    level INTEGER NOT NULL,     -- 0: days by user; 1: days; 2: months by user; 3: months; + 4 x number
    period INTEGER NOT NULL,    -- the day, or the first day of the month
    user_name TEXT NOT NULL,    -- '' for none
    site TEXT NOT NULL,         -- '' for none
    user_group TEXT NOT NULL,   -- '' for none
    labels TEXT NOT NULL,       -- {"meta": values of the key}
    score_set INTEGER NOT NULL, -- of score_sets, 0 for none
    present INTEGER NOT NULL,   -- the components of the records: 1 Cores + 2 Memory + 4 GPU + 8 TotalCPU
    records INTEGER NOT NULL,
    runtime INTEGER NOT NULL,   -- in seconds
    left_out INTEGER NOT NULL,  -- the number of records that the sums leave out, since their amounts are too large
    -- For each component the amount, and amount times runtime as high * 2^40 + low; NULL if the records do not have it.
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
    -- The earliest and latest stop time of all records ever added, and of those that were removed.
    first_stop INTEGER,
    last_stop INTEGER,
    first_gone INTEGER,
    last_gone INTEGER,
    PRIMARY KEY (level, period, user_name, site, user_group, labels, score_set, present)
) WITHOUT ROWID;
CREATE INDEX rollups_without_records ON rollups (level) WHERE records = 0;

-- The same sums for all other components.
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

-- Records that arrived for a run already stored with other content. The stored record is not changed. Its differences
-- are kept when it is released.
CREATE TABLE differences (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, -- in the order of arrival; the newest has the highest
    record_id TEXT NOT NULL,
    content INTEGER NOT NULL,
    seen_at INTEGER NOT NULL,
    origin_id INTEGER NOT NULL REFERENCES origins,
    offered TEXT NOT NULL,
    UNIQUE (record_id, content) -- a difference that arrives again is not a new one
);

-- Former versions of records that were deliberately corrected, closed or deleted.
CREATE TABLE versions (
    number INTEGER PRIMARY KEY AUTOINCREMENT, -- grows with each change of a record
    record_id TEXT NOT NULL, -- the record may have been deleted
    action TEXT NOT NULL CHECK (action IN ('correct', 'close', 'delete')),
    reason TEXT NOT NULL,
    changed_at INTEGER NOT NULL,
    changed_by INTEGER NOT NULL REFERENCES origins (origin_id),
    -- The former version.
    received_at INTEGER NOT NULL,
    updated_at INTEGER,
    origin_id INTEGER NOT NULL REFERENCES origins,
    document TEXT NOT NULL
);
CREATE INDEX versions_by_record ON versions (record_id);

-- The state that plugins keep between runs, in one file with the records that it depends on.
CREATE TABLE plugin_state (
    task TEXT PRIMARY KEY, -- the plugin's name in the configuration
    value BLOB NOT NULL,   -- JSON
    saved_at INTEGER NOT NULL
);

-- One row while `auditord database copy` fills this store, so that programs refuse to use it.
CREATE TABLE unfinished_copy (
    source TEXT NOT NULL -- the store that is copied
);

-- Filled and emptied to test whether the disk has room for a record.
CREATE TABLE probe (
    filling BLOB NOT NULL
);

-- The spools that deliver here, with generations by which an older copy of store or spool is detected.
CREATE TABLE spools (
    spool_id TEXT PRIMARY KEY,
    generation INTEGER NOT NULL -- grows with every delivery, and every start and stop of the spool's daemon
);

-- The daemons of this database, which save their state every half a minute, for `auditord status --all`.
CREATE TABLE daemons (
    spool_id TEXT PRIMARY KEY,
    host TEXT NOT NULL,
    process INTEGER NOT NULL,
    version TEXT NOT NULL,
    state_dir TEXT NOT NULL,
    started_at INTEGER NOT NULL,
    seen_at INTEGER NOT NULL,
    ended INTEGER NOT NULL,  -- 1: it was shut down properly
    queued INTEGER NOT NULL, -- entries in its queues
    oldest INTEGER,          -- when the oldest queued entry was received
    quarantined INTEGER NOT NULL
);

-- One row: the state of the lake (an Apache Iceberg table with records of many daemons) and of the released records.
CREATE TABLE lake (
    store_id TEXT NOT NULL,         -- the id of this store, also in the lake's rows
    lake_id TEXT NOT NULL,          -- the table that records are synced to; '' while nothing is synced
    given INTEGER NOT NULL,         -- the highest number of a batch
    released_in TEXT NOT NULL,      -- the table with the released records; '' if there never were any
    location TEXT NOT NULL,         -- the location of that table, for messages
    snapshot_id INTEGER NOT NULL,   -- the snapshot with the released records
    sequence INTEGER NOT NULL,      -- the snapshot's sequence number
    release INTEGER NOT NULL,       -- the last valid release; rows with a higher one are not released
    records INTEGER NOT NULL,       -- the number of released records
    beside_rollups INTEGER NOT NULL, -- the number of released records with `more`
    first_stop INTEGER,             -- a lower bound of their stop times
    last_stop INTEGER               -- an upper bound of their stop times
);
INSERT INTO lake VALUES (lower(hex(randomblob(16))), '', 0, '', '', 0, 0, 0, 0, 0, NULL, NULL);

-- The released records, which only the lake has, as far as verdicts on new records with the same ids depend on them.
CREATE TABLE released (
    record_id TEXT PRIMARY KEY,
    start_time INTEGER NOT NULL,
    stop_time INTEGER NOT NULL,
    content INTEGER NOT NULL,
    release INTEGER NOT NULL, -- the release of its row in the lake
    position INTEGER NOT NULL -- in the feed; kept when the record is recalled
) WITHOUT ROWID;

-- Released rows of the lake that do not count, since their records have been changed or recalled.
CREATE TABLE recalled (
    record_id TEXT NOT NULL,
    release INTEGER NOT NULL,
    stop_time INTEGER NOT NULL, -- the stop time in the row
    PRIMARY KEY (record_id, release)
) WITHOUT ROWID;
