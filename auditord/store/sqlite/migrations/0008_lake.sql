-- The lake: an Apache Iceberg table of the records of many daemons, see auditord.store.lake_changes.

-- One row once records are synced there.
CREATE TABLE lake (
    store_id TEXT NOT NULL, -- of this store; the lake says the same of this daemon's records
    lake_id TEXT NOT NULL,  -- of the table; '' until all records have been noted as changes
    batch INTEGER NOT NULL  -- the last number of a batch that was given
);

-- Records that the lake does not have as they are now.
CREATE TABLE lake_changes (
    number INTEGER PRIMARY KEY AUTOINCREMENT, -- the order
    record_id TEXT NOT NULL,
    known INTEGER NOT NULL, -- 1: the lake may have the record as it was
    stop_time INTEGER,      -- it stopped there then; NULL while open
    batch INTEGER           -- with which it is synced; NULL: it waits
);
