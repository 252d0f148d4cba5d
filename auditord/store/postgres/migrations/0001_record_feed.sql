-- The record store. Everything is in a schema of its own. Scripts only delete what they mention.
CREATE SCHEMA auditord;

-- The scripts that have been applied by `auditord database migrate`.
CREATE TABLE auditord.migrations (
    version integer PRIMARY KEY,
    name text NOT NULL,
    applied_at timestamptz NOT NULL
);

-- The origins of records, each pair once: a number in the record takes four bytes, the texts would take forty.
CREATE TABLE auditord.origins (
    origin_id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    -- task:<instance>, user:<name> for a command, or the authenticated name of a client; '' if unknown
    principal text COLLATE "C" NOT NULL,
    agent text COLLATE "C" NOT NULL, -- the beginning of the client's User-Agent; '' if it sent none
    UNIQUE (principal, agent)
);

-- The sets of scores of records' components, for sums over scores. Records from one type of node share a set.
CREATE TABLE auditord.score_sets (
    score_set integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    digest bytea NOT NULL UNIQUE, -- 16 bytes of BLAKE2b, since the scores may be too long for an index
    scores jsonb NOT NULL -- [[component, [{"name": score, "value": number}, ...]], ...], only components with scores
);

-- The feed of all stored versions of records (auditord/store/feed.py). A position is the id of the transaction that
-- stored the version, plus this offset. Positions below the oldest running transaction are final. Transaction ids start
-- again in the cluster of a restored dump, so the offset belongs to one cluster.
CREATE TABLE auditord.feed (
    cluster bigint NOT NULL,    -- pg_control_system().system_identifier
    "offset" bigint NOT NULL    -- also in the defaults of records.position and removals.position
);
INSERT INTO auditord.feed SELECT system_identifier, 0 FROM pg_control_system();

-- The records, which are also the log that consumers follow. The order of the columns avoids padding.
CREATE TABLE auditord.records (
    position bigint NOT NULL DEFAULT pg_current_xact_id()::text::bigint,
    start_time timestamptz NOT NULL,
    stop_time timestamptz, -- NULL while open
    runtime bigint,        -- whole seconds from start to stop, toward zero; may be negative; NULL while open
    content bigint NOT NULL, -- hash of meta (without provenance) and components
    received_at timestamptz NOT NULL, -- when it first arrived
    updated_at timestamptz, -- when it was last changed; NULL if never
    -- Amounts of the components Cores, Memory, GPU and TotalCPU, summed if a name occurs more than once.
    cores bigint,
    memory bigint,
    gpu bigint,
    total_cpu bigint,
    -- The totals CoreSeconds, MemorySeconds and GPUSeconds, which a record has instead of Cores, Memory and GPU. In cells,
    -- they are part of the sums of amount times runtime.
    core_seconds bigint,
    memory_seconds bigint,
    gpu_seconds bigint,
    -- Refer to auditord.origins and auditord.score_sets, which keep every row. Checks per record would cost too much.
    origin_id integer NOT NULL,
    score_set integer, -- NULL: no component has a score
    others smallint, -- 1: it has components other than these seven; 2: an amount is very large
    -- True if the columns for site, group, user or amounts are incomplete: several values, an older key, or several
    -- components with one name.
    more boolean,
    record_id text COLLATE "C" PRIMARY KEY,
    -- The first value of the first key that the record has: site_id or site, group_id or group, user_id or user.
    site text COLLATE "C",
    user_group text COLLATE "C",
    user_name text COLLATE "C",
    meta jsonb, -- lists of texts by key
    document text COLLATE "C" NOT NULL -- the wire text, byte for byte as clients read it
);
CREATE INDEX records_by_position ON auditord.records (position);
-- Answers are read in the order of these indexes. Ties are sorted by record_id in memory.
CREATE INDEX records_by_stop ON auditord.records (stop_time);
CREATE INDEX records_by_start ON auditord.records (start_time);
-- Serves every filter on meta keys.
CREATE INDEX records_by_meta ON auditord.records USING gin (meta jsonb_path_ops);
-- Serves filters on long runtimes. An index on all of them would cost each new record a tenth of its time.
CREATE INDEX records_with_long_runtime ON auditord.records (runtime) WHERE runtime >= 43200; -- half a day
-- Sums read the documents of these few records.
CREATE INDEX records_with_more ON auditord.records (stop_time) WHERE more;
-- Tells whether there are records with totals: sums read these columns only then.
CREATE INDEX records_with_totals ON auditord.records (stop_time)
WHERE core_seconds IS NOT NULL OR memory_seconds IS NOT NULL OR gpu_seconds IS NOT NULL;

-- Former versions of records, until every consumer has passed them.
CREATE TABLE auditord.removals (
    position bigint NOT NULL DEFAULT pg_current_xact_id()::text::bigint, -- the position of the change
    former bigint NOT NULL, -- the position of the former version
    start_time timestamptz NOT NULL,
    stop_time timestamptz,
    changed_at timestamptz,
    runtime bigint,
    cores bigint,
    memory bigint,
    gpu bigint,
    total_cpu bigint,
    core_seconds bigint,
    memory_seconds bigint,
    gpu_seconds bigint,
    origin_id integer NOT NULL,
    score_set integer,
    changed_by integer, -- of auditord.origins
    others smallint,
    more boolean,
    record_id text COLLATE "C" NOT NULL,
    site text COLLATE "C",
    user_group text COLLATE "C",
    user_name text COLLATE "C",
    -- The operation that senders forward, or NULL. It was made by changed_by at changed_at.
    operation text COLLATE "C" CHECK (operation IN ('insert', 'close', 'replace')),
    -- NULL once all counts and roll-ups have passed it, so that names are not kept.
    meta jsonb,
    document text COLLATE "C"
);
CREATE INDEX removals_by_position ON auditord.removals (position);
CREATE INDEX removals_by_former ON auditord.removals (former);
CREATE INDEX removals_with_names ON auditord.removals (position) WHERE document IS NOT NULL;

-- Continue with positions above all stored ones, since a dump was restored and transactions may have lower ids here. The
-- daemon's role need not own the tables.
CREATE FUNCTION auditord.follow_cluster() RETURNS void LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog AS $$
DECLARE
    here bigint := (SELECT system_identifier FROM pg_control_system());
    above bigint;
BEGIN
    LOCK TABLE auditord.records, auditord.removals IN ACCESS EXCLUSIVE MODE;
    above := 1 + greatest(
        (SELECT max(position) FROM auditord.records), (SELECT max(position) FROM auditord.removals),
        (SELECT max(position) FROM auditord.consumers), (SELECT max(position) FROM auditord.released),
        (SELECT max(given) FROM auditord.lake), 0
    );
    EXECUTE format('ALTER TABLE auditord.records ALTER position SET DEFAULT pg_current_xact_id()::text::bigint + %s', above);
    EXECUTE format('ALTER TABLE auditord.removals ALTER position SET DEFAULT pg_current_xact_id()::text::bigint + %s', above);
    UPDATE auditord.feed SET cluster = here, "offset" = above;
END;
$$;

-- The consumers of the feed, and the positions up to which they have read all versions.
CREATE TABLE auditord.consumers (
    name text COLLATE "C" PRIMARY KEY,
    position bigint NOT NULL,
    updated_at timestamptz NOT NULL
) WITH (fillfactor = 50);
INSERT INTO auditord.consumers VALUES ('count:', 0, now()), ('rollup:0', 0, now());

-- The number of records with a value under a counted meta key, up to the position of the consumer `count:<key>`. The
-- key '' counts all records.
CREATE TABLE auditord.record_counts (
    meta_key text COLLATE "C" NOT NULL,
    meta_value text COLLATE "C" NOT NULL,
    records bigint NOT NULL,
    PRIMARY KEY (meta_key, meta_value)
);

-- The sets of cells, each filled by the consumer `rollup:<number>`.
CREATE TABLE auditord.rolled_keys (
    number integer PRIMARY KEY,       -- 0: by site, group and user
    filled_from integer NOT NULL,     -- the first day of stop times whose records are in the cells
    meta_key text COLLATE "C" UNIQUE  -- groups cells instead of users; NULL for number 0, '' for the number of cores
);
INSERT INTO auditord.rolled_keys (number, filled_from) VALUES (0, -719162);

-- Sums over finished records by day and month of their stop times. Days are numbers since 1970, in UTC. Records with
-- `more` are left out.
CREATE TABLE auditord.rollups (
    level integer NOT NULL,     -- 0: days by user; 1: days; 2: months by user; 3: months; + 4 x number
    period integer NOT NULL,    -- the day, or the first day of the month
    digest uuid NOT NULL,       -- of site, group, user and labels, since they may be too long for an index
    score_set integer NOT NULL, -- of auditord.score_sets, 0 for none
    present smallint NOT NULL,  -- the components of the records: 1 Cores + 2 Memory + 4 GPU + 8 TotalCPU
    records bigint NOT NULL,
    -- The earliest and latest stop time of all records ever added, and of those that were removed.
    first_stop timestamptz,
    last_stop timestamptz,
    first_gone timestamptz,
    last_gone timestamptz,
    site text COLLATE "C",
    user_group text COLLATE "C",
    user_name text COLLATE "C",
    labels jsonb,               -- the values of the key, as in meta
    runtime numeric NOT NULL,   -- in seconds
    -- For each component the amount, and amount times runtime; NULL if the records do not have the component.
    cores numeric,
    cores_runtime numeric,
    memory numeric,
    memory_runtime numeric,
    gpu numeric,
    gpu_runtime numeric,
    total_cpu numeric,
    total_cpu_runtime numeric,
    PRIMARY KEY (level, period, digest, score_set, present)
) WITH (fillfactor = 80);
CREATE INDEX rollups_by_user ON auditord.rollups (user_name, level, period) WHERE user_name IS NOT NULL;
CREATE INDEX rollups_without_records ON auditord.rollups (level) WHERE records = 0;

-- The same sums for all other components.
CREATE TABLE auditord.rollup_components (
    level integer NOT NULL,
    period integer NOT NULL,
    digest uuid NOT NULL, -- also of the component
    score_set integer NOT NULL,
    present smallint NOT NULL,
    records bigint NOT NULL,
    site text COLLATE "C",
    user_group text COLLATE "C",
    user_name text COLLATE "C",
    component text COLLATE "C" NOT NULL,
    labels jsonb,
    amount numeric NOT NULL,
    amount_runtime numeric NOT NULL,
    PRIMARY KEY (level, period, digest, score_set, present)
) WITH (fillfactor = 80);
CREATE INDEX rollup_components_without_records ON auditord.rollup_components (level) WHERE records = 0;

-- Records that arrived for a run already stored with other content. The stored record is not changed. Its differences
-- are kept when it is released.
CREATE TABLE auditord.differences (
    arrival bigint GENERATED BY DEFAULT AS IDENTITY, -- the newest has the highest
    record_id text COLLATE "C" NOT NULL,
    content bigint NOT NULL,
    seen_at timestamptz NOT NULL,
    origin_id integer NOT NULL,
    offered text COLLATE "C" NOT NULL,
    PRIMARY KEY (record_id, content) -- a difference that arrives again is not a new one
);

-- Former versions of records that were deliberately corrected, closed or deleted.
CREATE TABLE auditord.versions (
    number bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, -- grows with each change of a record
    record_id text COLLATE "C" NOT NULL, -- the record may have been deleted
    action text COLLATE "C" NOT NULL CHECK (action IN ('correct', 'close', 'delete')),
    reason text COLLATE "C" NOT NULL,
    changed_at timestamptz NOT NULL,
    changed_by integer NOT NULL, -- of auditord.origins
    -- The former version.
    received_at timestamptz NOT NULL,
    updated_at timestamptz,
    origin_id integer NOT NULL,
    document text COLLATE "C" NOT NULL
);
CREATE INDEX versions_by_record ON auditord.versions (record_id);

-- The state that plugins keep between runs. Any daemon of this database may run them, one at a time.
CREATE TABLE auditord.plugin_state (
    task text COLLATE "C" PRIMARY KEY, -- the plugin's name in the configuration
    value text COLLATE "C" NOT NULL,   -- JSON
    saved_at timestamptz NOT NULL
);

-- One row while `auditord database copy` fills this store, so that programs refuse to use it.
CREATE TABLE auditord.unfinished_copy (
    source text COLLATE "C" NOT NULL -- the store that is copied
);

-- Written to test whether the database can write.
CREATE TABLE auditord.probe (
    written_at timestamptz NOT NULL
) WITH (fillfactor = 10);
INSERT INTO auditord.probe VALUES (now());

-- The spools that deliver here, with generations by which an older copy of store or spool is detected.
CREATE TABLE auditord.spools (
    spool_id text COLLATE "C" PRIMARY KEY,
    generation bigint NOT NULL -- grows with every delivery, and every start and stop of the spool's daemon
);

-- The process that may run a plugin, and the last run. All times are by the server's clock.
CREATE TABLE auditord.turns (
    task text COLLATE "C" PRIMARY KEY,  -- the plugin's name in the configuration
    fencing bigint NOT NULL DEFAULT 0,  -- grows with each holder: writes with a lower number are refused
    host text COLLATE "C",              -- the holder's host; NULL while the turn is free
    process integer,                    -- the holder's process id
    since timestamptz,                  -- when the holder got the turn
    expires_at timestamptz,             -- the end of the lease that the holder renews
    last_run timestamptz,               -- when the last successful run began
    last_tick timestamptz,              -- the latest instant of a cron line that was served
    last_daemon text COLLATE "C"        -- the spool id of the daemon of the last run
);

-- The daemons of this database, which save their state every half a minute, for `auditord status --all`.
CREATE TABLE auditord.daemons (
    spool_id text COLLATE "C" PRIMARY KEY,
    host text COLLATE "C" NOT NULL,
    process integer NOT NULL,
    version text COLLATE "C" NOT NULL,
    state_dir text COLLATE "C" NOT NULL,
    started_at timestamptz NOT NULL,
    seen_at timestamptz NOT NULL, -- by the server's clock
    ended boolean NOT NULL,       -- whether it was shut down properly
    queued bigint NOT NULL,       -- entries in its queues
    oldest timestamptz,           -- when the oldest queued entry was received
    quarantined bigint NOT NULL
);

-- One row: the state of the lake (an Apache Iceberg table with records of many daemons) and of the released records.
CREATE TABLE auditord.lake (
    store_id text COLLATE "C" NOT NULL,    -- the id of this store, also in the lake's rows
    lake_id text COLLATE "C" NOT NULL,     -- the table that records are synced to; '' while nothing is synced
    given bigint NOT NULL,                 -- the highest number of a batch
    released_in text COLLATE "C" NOT NULL, -- the table with the released records; '' if there never were any
    location text COLLATE "C" NOT NULL,    -- the location of that table, for messages
    snapshot_id bigint NOT NULL,           -- the snapshot with the released records
    sequence bigint NOT NULL,              -- the snapshot's sequence number
    release bigint NOT NULL,               -- the last valid release; rows with a higher one are not released
    records bigint NOT NULL,               -- the number of released records
    beside_rollups bigint NOT NULL,        -- the number of released records with `more`
    first_stop timestamptz,                -- a lower bound of their stop times
    last_stop timestamptz                  -- an upper bound of their stop times
);
INSERT INTO auditord.lake VALUES (replace(gen_random_uuid()::text, '-', ''), '', 0, '', '', 0, 0, 0, 0, 0, NULL, NULL);

-- The released records, which only the lake has, as far as verdicts on new records with the same ids depend on them.
CREATE TABLE auditord.released (
    start_time timestamptz NOT NULL,
    stop_time timestamptz NOT NULL,
    content bigint NOT NULL,
    release bigint NOT NULL,  -- the release of its row in the lake
    position bigint NOT NULL, -- in the feed; kept when the record is recalled
    record_id text COLLATE "C" PRIMARY KEY
);

-- Released rows of the lake that do not count, since their records have been changed or recalled.
CREATE TABLE auditord.recalled (
    release bigint NOT NULL,
    stop_time timestamptz NOT NULL, -- the stop time in the row
    record_id text COLLATE "C" NOT NULL,
    PRIMARY KEY (record_id, release)
);

-- Called to abort the addition of a record that has been released. The addition is retried.
CREATE FUNCTION auditord.refuse_released(record_id text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the record % is released to the lake', record_id USING ERRCODE = 'serialization_failure';
END;
$$;
