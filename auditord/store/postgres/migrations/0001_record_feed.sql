-- The record store. Everything is in a schema of its own; nothing is deleted but what is said here.
CREATE SCHEMA auditord;

-- Which of these scripts have been run; `auditord database migrate` writes it.
CREATE TABLE auditord.migrations (
    version integer PRIMARY KEY,
    name text NOT NULL,
    applied_at timestamptz NOT NULL
);

-- Who brought records, each pair once: a number in the record takes four bytes, the texts would take forty.
CREATE TABLE auditord.sources (
    source_id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    -- task:<instance>, user:<name> for a command, or the authenticated name of a client; '' if unknown
    principal text COLLATE "C" NOT NULL,
    agent text COLLATE "C" NOT NULL, -- the beginning of the client's User-Agent; '' if it sent none
    UNIQUE (principal, agent)
);

-- The scores of each record's components as one number, for sums over scores: nodes of one type share them.
CREATE TABLE auditord.score_sets (
    score_set integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    digest bytea NOT NULL UNIQUE, -- 16 bytes of BLAKE2b of the scores, which may be too long for an index
    scores jsonb NOT NULL -- [[component, [{"name": score, "value": number}, ...]], ...], components without left out
);

-- The feed of all stored versions of records (auditord/store/feed.py). A position is the id of the transaction that stored
-- the version, plus the offset here: what lies below the oldest transaction that is still running is final. Transaction
-- ids begin anew in the cluster of a restored dump, so the offset belongs to one cluster.
CREATE TABLE auditord.feed (
    cluster bigint NOT NULL,    -- pg_control_system().system_identifier
    "offset" bigint NOT NULL    -- the defaults of records.position and removals.position have the same
);
INSERT INTO auditord.feed SELECT system_identifier, 0 FROM pg_control_system();

-- The records, which are at the same time the log that consumers follow. The columns stand in an order that leaves no gaps
-- between them.
CREATE TABLE auditord.records (
    position bigint NOT NULL DEFAULT pg_current_xact_id()::text::bigint,
    start_time timestamptz NOT NULL,
    stop_time timestamptz, -- NULL while open
    runtime bigint,        -- whole seconds from start to stop, toward zero; may be negative; NULL while open
    content bigint NOT NULL, -- hash of meta (without provenance) and components
    received_at timestamptz NOT NULL, -- of the first arrival
    updated_at timestamptz, -- of the last change, NULL if there was none
    -- Amounts of the components Cores, Memory, GPU and TotalCPU, summed where a name occurs more than once.
    cores bigint,
    memory bigint,
    gpu bigint,
    total_cpu bigint,
    -- Of auditord.sources and auditord.score_sets, which keep every row; a check per record would cost too much.
    source_id integer NOT NULL,
    score_set integer, -- NULL: no component has a score
    others smallint, -- 1: it has further components than these four; 2: one of their amounts is very large
    -- True: the columns for site, group, user or for the amounts do not tell all: several values, the second key, or
    -- several components of one name.
    more boolean,
    record_id text COLLATE "C" PRIMARY KEY,
    -- First value of the first meta key that the record has: site_id or site, group_id or group, user_id or user.
    site text COLLATE "C",
    user_group text COLLATE "C",
    user_name text COLLATE "C",
    meta jsonb, -- lists of texts by key
    document text COLLATE "C" NOT NULL -- the wire text, byte for byte as clients read it
);
CREATE INDEX records_by_position ON auditord.records (position);
-- Answers are ordered by these, ties by record_id are sorted in memory as they pass.
CREATE INDEX records_by_stop ON auditord.records (stop_time);
CREATE INDEX records_by_start ON auditord.records (start_time);
-- Serves every filter on meta keys.
CREATE INDEX records_by_meta ON auditord.records USING gin (meta jsonb_path_ops);
-- Sums look into the documents of these few; without records that have more than the columns tell, it is empty.
CREATE INDEX records_with_more ON auditord.records (stop_time) WHERE more;

-- Former versions of records, until every consumer has passed them.
CREATE TABLE auditord.removals (
    position bigint NOT NULL DEFAULT pg_current_xact_id()::text::bigint, -- of the change
    former bigint NOT NULL, -- the position of the former version
    start_time timestamptz NOT NULL,
    stop_time timestamptz,
    changed_at timestamptz,
    runtime bigint,
    cores bigint,
    memory bigint,
    gpu bigint,
    total_cpu bigint,
    source_id integer NOT NULL,
    score_set integer,
    changed_by integer, -- of auditord.sources
    others smallint,
    more boolean,
    record_id text COLLATE "C" NOT NULL,
    site text COLLATE "C",
    user_group text COLLATE "C",
    user_name text COLLATE "C",
    -- What senders forward of the change; who made it, and when, is in changed_by and changed_at. NULL for nothing.
    operation text COLLATE "C" CHECK (operation IN ('insert', 'close', 'replace')),
    -- NULL once all that count and sum have passed it: names are not kept.
    meta jsonb,
    document text COLLATE "C"
);
CREATE INDEX removals_by_position ON auditord.removals (position);
CREATE INDEX removals_by_former ON auditord.removals (former);

-- Go on with positions above all that are stored, if this is another cluster than the one that stored them: that of a
-- restored dump. The daemon's role need not own the tables.
CREATE FUNCTION auditord.follow_cluster() RETURNS void LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog AS $$
DECLARE
    here bigint := (SELECT system_identifier FROM pg_control_system());
    above bigint;
BEGIN
    PERFORM FROM auditord.feed WHERE feed.cluster = here;
    IF FOUND THEN
        RETURN;
    END IF;
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

-- How far each consumer of the feed has read: all versions up to here.
CREATE TABLE auditord.consumers (
    name text COLLATE "C" PRIMARY KEY,
    position bigint NOT NULL,
    updated_at timestamptz NOT NULL
) WITH (fillfactor = 50);
INSERT INTO auditord.consumers VALUES ('count:', 0, now()), ('rollup:0', 0, now());

-- How many records have a value under a counted meta key, up to the position of the consumer `count:<key>`. All records
-- are counted under the key ''.
CREATE TABLE auditord.record_counts (
    meta_key text COLLATE "C" NOT NULL,
    meta_value text COLLATE "C" NOT NULL,
    records bigint NOT NULL,
    PRIMARY KEY (meta_key, meta_value)
);

-- The sets of cells, each kept by the consumer `rollup:<number>`.
CREATE TABLE auditord.rolled_keys (
    number integer PRIMARY KEY,       -- 0: by site, group and user
    filled_from integer NOT NULL,     -- the first day of stop times whose records are in the cells
    meta_key text COLLATE "C" UNIQUE  -- whose values are told apart instead of users; '' stands for the number of cores
);
INSERT INTO auditord.rolled_keys (number, filled_from) VALUES (0, -719162);

-- Sums over finished records by day and month of their stop times. Days are numbers since 1970 in UTC. Records with `more`
-- are not in here.
CREATE TABLE auditord.rollups (
    level integer NOT NULL,     -- 0: days; 1: days, users together; 2: months; 3: months, users together; + 4 x number
    period integer NOT NULL,    -- the day, or the first one of the month
    digest uuid NOT NULL,       -- of site, group, user and labels, which may be too long for an index
    score_set integer NOT NULL, -- of auditord.score_sets, 0 for none
    present smallint NOT NULL,  -- which components the records have: 1 Cores, 2 Memory, 4 GPU, 8 TotalCPU, added up
    records bigint NOT NULL,
    -- The earliest and latest stop time of all records that ever were here, and of those that are gone.
    first_stop timestamptz,
    last_stop timestamptz,
    first_gone timestamptz,
    last_gone timestamptz,
    site text COLLATE "C",
    user_group text COLLATE "C",
    user_name text COLLATE "C",
    labels jsonb,               -- the values of the key, as in meta; NULL for none
    runtime numeric NOT NULL,   -- in seconds
    -- Of each component the amount, and amount times runtime; NULL if the records do not have it.
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

-- The same of all other components.
CREATE TABLE auditord.rollup_components (
    level integer NOT NULL,
    period integer NOT NULL,
    digest uuid NOT NULL, -- of the component, too
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

-- Records that came for a run which was stored with other content; the stored one stays. They are kept when their record
-- is released.
CREATE TABLE auditord.differences (
    arrival bigint GENERATED BY DEFAULT AS IDENTITY, -- the latest is the highest
    record_id text COLLATE "C" NOT NULL,
    content bigint NOT NULL,
    seen_at timestamptz NOT NULL,
    source_id integer NOT NULL,
    offered text COLLATE "C" NOT NULL,
    PRIMARY KEY (record_id, content) -- collected again and again, it is still one difference
);

-- What records were before somebody corrected, closed or deleted them on purpose.
CREATE TABLE auditord.versions (
    number bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, -- of one record, a later change has the higher one
    record_id text COLLATE "C" NOT NULL, -- there may be no such record any more
    action text COLLATE "C" NOT NULL CHECK (action IN ('correct', 'close', 'delete')),
    reason text COLLATE "C" NOT NULL,
    changed_at timestamptz NOT NULL,
    changed_by integer NOT NULL, -- of auditord.sources
    -- The record until then.
    received_at timestamptz NOT NULL,
    updated_at timestamptz,
    source_id integer NOT NULL,
    document text COLLATE "C" NOT NULL
);
CREATE INDEX versions_by_record ON auditord.versions (record_id);

-- What plugins keep between their runs: any daemon of this database may run them, one at a time.
CREATE TABLE auditord.plugin_state (
    task text COLLATE "C" PRIMARY KEY, -- the plugin's name in the configuration
    value text COLLATE "C" NOT NULL,   -- JSON
    saved_at timestamptz NOT NULL
);

-- One row while `auditord database copy` fills this store: nobody may take its records for all of them.
CREATE TABLE auditord.unfinished_copy (
    source text COLLATE "C" NOT NULL -- the store that is copied
);

-- Written to see whether the database takes a record.
CREATE TABLE auditord.probe (
    written_at timestamptz NOT NULL
) WITH (fillfactor = 10);
INSERT INTO auditord.probe VALUES (now());

-- The spools that deliver here, and how far each has come: an older copy of one of the two is noticed.
CREATE TABLE auditord.spools (
    spool_id text COLLATE "C" PRIMARY KEY,
    generation bigint NOT NULL -- grows with every delivery, every start and stop of the spool's daemon
);

-- Which process may run a plugin, and when one last has. All times are the server's.
CREATE TABLE auditord.turns (
    task text COLLATE "C" PRIMARY KEY,  -- the plugin's name in the configuration
    fencing bigint NOT NULL DEFAULT 0,  -- grows with each holder: whoever has a lower number writes nothing any more
    host text COLLATE "C",              -- of the holder; null while nobody has the turn
    process integer,                    -- its process id there
    since timestamptz,                  -- when it got the turn
    expires_at timestamptz,             -- the holder renews this lease; after it anybody may take over
    last_run timestamptz,               -- when the last run that went well began
    last_tick timestamptz,              -- the latest instant of a cron line for which there was a run
    last_daemon text COLLATE "C"        -- the spool id of the daemon of the last run
);

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

-- One row: the lake, an Apache Iceberg table of the records of many daemons, and which of its rows are released records.
CREATE TABLE auditord.lake (
    store_id text COLLATE "C" NOT NULL,    -- of this store; the lake says the same of this daemon's records
    lake_id text COLLATE "C" NOT NULL,     -- of the table that records are synced to; '' while nothing is synced
    given bigint NOT NULL,                 -- the highest position up to which a batch was given
    released_in text COLLATE "C" NOT NULL, -- the table that has the released records; '' if there never were any
    location text COLLATE "C" NOT NULL,    -- of that table, for messages
    snapshot_id bigint NOT NULL,           -- of the table, which has them
    sequence bigint NOT NULL,              -- the snapshot's place in the order of all
    release bigint NOT NULL,               -- rows of the daemon with a higher one are not released
    records bigint NOT NULL,               -- released records
    beside_rollups bigint NOT NULL,        -- those of them with `more`
    first_stop timestamptz,                -- their stop times lie from here
    last_stop timestamptz                  -- to here
);
INSERT INTO auditord.lake VALUES (replace(gen_random_uuid()::text, '-', ''), '', 0, '', '', 0, 0, 0, 0, 0, NULL, NULL);

-- The ids of released records, which only the lake has, with all that the verdict on another record of the same id needs.
CREATE TABLE auditord.released (
    start_time timestamptz NOT NULL,
    stop_time timestamptz NOT NULL,
    content bigint NOT NULL,
    release bigint NOT NULL,  -- that its row in the lake has
    position bigint NOT NULL, -- in the feed, which it keeps if it comes back
    record_id text COLLATE "C" PRIMARY KEY
);

-- Rows of the lake with a number of a release that do not count: the record was changed meanwhile, or is back in this
-- database.
CREATE TABLE auditord.recalled (
    release bigint NOT NULL,
    stop_time timestamptz NOT NULL, -- of the row
    record_id text COLLATE "C" NOT NULL,
    PRIMARY KEY (record_id, release)
);

-- Whoever adds a released record has not seen that it is: looked at again, it is known.
CREATE FUNCTION auditord.refuse_released(record_id text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the record % is released to the lake', record_id USING ERRCODE = 'serialization_failure';
END;
$$;
