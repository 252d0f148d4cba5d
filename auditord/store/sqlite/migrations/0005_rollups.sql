-- Sums over finished records by day and month of their stop times, for sums over months and years. Days are numbers since
-- 1970 in UTC, instants microseconds. Records with `more` are not in here.

-- The labels of cells, each set once.
CREATE TABLE rollup_labels (
    number INTEGER PRIMARY KEY,
    digest TEXT NOT NULL UNIQUE, -- of the document
    site TEXT,
    user_group TEXT,
    user_name TEXT,
    document TEXT NOT NULL -- {"meta": what all records of a cell have}
);

-- The cells, and of each its components, for sums of amounts and of amounts times seconds of runtime.
CREATE TABLE rollups (
    level INTEGER NOT NULL,     -- 0: days; 1: days, users together; 2: months; 3: months, users together
    period INTEGER NOT NULL,    -- the day, or the first one of the month
    labels INTEGER NOT NULL,    -- of rollup_labels
    score_set INTEGER NOT NULL, -- of score_sets, 0 for none
    component TEXT NOT NULL,    -- '' stands for the record itself: it has an amount of 1
    records INTEGER NOT NULL,   -- how many have the component
    amount INTEGER NOT NULL,
    runtime_high INTEGER NOT NULL, -- amount times runtime in units of 2^40, the rest of it is in the next column
    runtime_low INTEGER NOT NULL,
    -- For '': the earliest and latest stop time of all records that ever were here, and of those that are gone.
    first_stop INTEGER,
    last_stop INTEGER,
    gone_first INTEGER,
    gone_last INTEGER,
    left_out INTEGER NOT NULL, -- how many records are in no sum since their amounts are too large
    PRIMARY KEY (level, period, labels, score_set, component)
) WITHOUT ROWID;

-- What transactions changed and nobody has folded into the cells yet; one row per transaction and day.
CREATE TABLE rollup_changes (
    number INTEGER PRIMARY KEY AUTOINCREMENT, -- the order
    day INTEGER NOT NULL,
    size INTEGER NOT NULL, -- how many cells are changed
    changes TEXT NOT NULL  -- JSON
);

-- One row: the first day whose records are not in the cells yet; 2932897, the year 10000, when all are. The daemon goes on
-- day by day.
CREATE TABLE rollup_state (
    filled_to INTEGER NOT NULL
);
INSERT INTO rollup_state
SELECT CASE WHEN EXISTS (SELECT 1 FROM records) THEN -719162 ELSE 2932897 END;
