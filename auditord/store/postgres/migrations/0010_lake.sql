-- The lake: an Apache Iceberg table of the records of many daemons, see auditord.store.lake_changes.

-- One row once records are synced there.
CREATE TABLE auditord.lake (
    store_id text COLLATE "C" NOT NULL, -- of this store; the lake says the same of this daemon's records
    lake_id text COLLATE "C" NOT NULL,  -- of the table; '' until all records have been noted as changes
    batch bigint NOT NULL               -- the last number of a batch that was given
);

-- Records that the lake does not have as they are now. Instants are microseconds since 1970.
CREATE TABLE auditord.lake_changes (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, -- the order
    stop_time bigint,         -- the record stopped there then; NULL while open
    batch bigint,             -- with which it is synced; NULL: it waits
    known smallint NOT NULL,  -- 1: the lake may have the record as it was
    record_id text COLLATE "C" NOT NULL
);
