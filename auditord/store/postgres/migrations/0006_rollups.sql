-- Sums over finished records by day and month of their stop times, for sums over months and years. Days are numbers since
-- 1970 in UTC, instants microseconds. Records with `more` are not in here.

-- The labels of cells, each set once.
CREATE TABLE auditord.rollup_labels (
    number integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    digest text COLLATE "C" NOT NULL UNIQUE, -- of the meta, which may be too long for an index
    site text COLLATE "C",
    user_group text COLLATE "C",
    user_name text COLLATE "C",
    meta jsonb NOT NULL -- what all records of a cell have
);

-- The cells, and of each its components, for sums of amounts and of amounts times seconds of runtime.
CREATE TABLE auditord.rollups (
    level smallint NOT NULL,    -- 0: days; 1: days, users together; 2: months; 3: months, users together
    period integer NOT NULL,    -- the day, or the first one of the month
    labels integer NOT NULL,    -- of auditord.rollup_labels
    score_set integer NOT NULL, -- of auditord.score_sets, 0 for none
    records bigint NOT NULL,    -- how many have the component
    amount bigint NOT NULL,
    runtime_high bigint NOT NULL, -- amount times runtime in units of 2^40, the rest of it is in the next column
    runtime_low bigint NOT NULL,
    -- For '': the earliest and latest stop time of all records that ever were here, and of those that are gone.
    first_stop bigint,
    last_stop bigint,
    gone_first bigint,
    gone_last bigint,
    left_out bigint NOT NULL, -- how many records are in no sum since their amounts are too large
    component text COLLATE "C" NOT NULL, -- '' stands for the record itself: it has an amount of 1
    PRIMARY KEY (level, period, labels, score_set, component)
) WITH (fillfactor = 80);

-- What transactions changed and nobody has folded into the cells yet; one row per transaction and day, so that none waits
-- for another.
CREATE TABLE auditord.rollup_changes (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, -- of one record, a later change has the higher one
    day integer NOT NULL,
    size integer NOT NULL, -- how many cells are changed
    changes jsonb NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
ALTER TABLE auditord.rollup_changes ALTER COLUMN changes SET STORAGE EXTERNAL; -- short-lived: not worth compressing

-- One row: the first day whose records are not in the cells yet; 2932897, the year 10000, when all are. A daemon goes on
-- day by day.
CREATE TABLE auditord.rollup_state (
    filled_to integer NOT NULL
);
INSERT INTO auditord.rollup_state
SELECT CASE WHEN EXISTS (SELECT 1 FROM auditord.records) THEN -719162 ELSE 2932897 END;
