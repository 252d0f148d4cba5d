-- The archive: records that have moved out of this database into an Apache Iceberg table.

-- One row: the state of its table that counts, together with the records of this database.
CREATE TABLE archive (
    archive_id TEXT NOT NULL,     -- the table's property auditord.archive says the same; '' without an archive
    location TEXT NOT NULL,       -- of the table, for messages
    snapshot_id INTEGER NOT NULL, -- of the table
    sequence INTEGER NOT NULL,    -- the snapshot's place in the order of all
    chunk INTEGER NOT NULL,       -- rows of the snapshot with a higher one do not count yet
    records INTEGER NOT NULL,     -- archived records
    first_stop INTEGER,           -- their stop times lie from here
    last_stop INTEGER             -- to here
);
INSERT INTO archive (archive_id, location, snapshot_id, sequence, chunk, records) VALUES ('', '', 0, 0, 0, 0);

-- The ids of archived records, with all that the verdict on another record of the same id needs.
CREATE TABLE archived_records (
    record_id TEXT PRIMARY KEY,
    start_time INTEGER NOT NULL,
    stop_time INTEGER NOT NULL,
    content INTEGER NOT NULL,
    chunk INTEGER NOT NULL -- of its row in the archive's table
) WITHOUT ROWID;

-- Rows of the archive's table that count no more: the record was changed meanwhile, or is back in this database.
CREATE TABLE archive_removals (
    record_id TEXT NOT NULL,
    chunk INTEGER NOT NULL,
    PRIMARY KEY (record_id, chunk)
) WITHOUT ROWID;

-- Differences are kept when their record moves into the archive.
ALTER TABLE differences RENAME TO differences_until_3;
CREATE TABLE differences (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, -- in the order of arrival, the latest is the highest
    record_id TEXT NOT NULL,
    content INTEGER NOT NULL,
    seen_at INTEGER NOT NULL,
    source_id INTEGER NOT NULL REFERENCES sources,
    offered TEXT NOT NULL,
    UNIQUE (record_id, content) -- collected again and again, it is still one difference
);
INSERT INTO differences SELECT * FROM differences_until_3;
DROP TABLE differences_until_3;
