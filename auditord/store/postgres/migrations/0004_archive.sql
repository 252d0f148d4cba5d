-- The archive: records that have moved out of this database into an Apache Iceberg table.

-- One row: the state of the archive's table that counts, together with the records of this database.
CREATE TABLE auditord.archive (
    archive_id text COLLATE "C" NOT NULL, -- the table's property auditord.archive says the same; '' without an archive
    location text COLLATE "C" NOT NULL,   -- of the table, for messages
    snapshot_id bigint NOT NULL,          -- of the table
    sequence bigint NOT NULL,             -- the snapshot's place in the order of all
    chunk bigint NOT NULL,                -- rows of the snapshot with a higher one do not count yet
    records bigint NOT NULL,              -- archived records
    first_stop timestamptz,               -- their stop times lie from here
    last_stop timestamptz                 -- to here
);
INSERT INTO auditord.archive (archive_id, location, snapshot_id, sequence, chunk, records) VALUES ('', '', 0, 0, 0, 0);

-- The ids of archived records, with all that the verdict on another record of the same id needs.
CREATE TABLE auditord.archived_records (
    start_time timestamptz NOT NULL,
    stop_time timestamptz NOT NULL,
    content bigint NOT NULL,
    chunk bigint NOT NULL, -- of its row in the archive's table
    record_id text COLLATE "C" PRIMARY KEY
);

-- Rows of the archive's table that count no more: the record was changed meanwhile, or is back in this database.
CREATE TABLE auditord.archive_removals (
    chunk bigint NOT NULL,
    record_id text COLLATE "C" NOT NULL,
    PRIMARY KEY (record_id, chunk)
);

-- An id is in this database or in the archive. Whoever adds an archived one has not seen that it is: looked at again, it
-- is known. (Only after the insertion the commit of a transaction that archives the same id has been waited for.)
CREATE FUNCTION auditord.refuse_archived() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM added INNER JOIN auditord.archived_records USING (record_id)) THEN
        RAISE EXCEPTION 'a record is in the archive' USING ERRCODE = 'serialization_failure';
    END IF;
    RETURN NULL;
END;
$$;
CREATE TRIGGER records_not_archived AFTER INSERT ON auditord.records
REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION auditord.refuse_archived();

-- Without an archive nothing is looked for: the trigger makes an insertion about a quarter dearer.
ALTER TABLE auditord.records DISABLE TRIGGER records_not_archived;
CREATE FUNCTION auditord.begin_archive() RETURNS trigger LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog AS $$ -- the daemon's role need not own the table
BEGIN
    IF EXISTS (SELECT 1 FROM pg_trigger WHERE tgname = 'records_not_archived' AND tgenabled = 'D'
               AND tgrelid = 'auditord.records'::regclass) THEN
        ALTER TABLE auditord.records ENABLE TRIGGER records_not_archived;
    END IF;
    RETURN NULL;
END;
$$;
CREATE TRIGGER archive_begun AFTER INSERT OR UPDATE ON auditord.archive
FOR EACH ROW WHEN (NEW.archive_id <> '') EXECUTE FUNCTION auditord.begin_archive();

-- Differences are kept when their record moves into the archive.
ALTER TABLE auditord.differences DROP CONSTRAINT differences_record_id_fkey;

-- A catalog of Iceberg tables as pyiceberg (and the JDBC catalog of other engines) knows it, for the archive's table.
CREATE TABLE auditord.iceberg_tables (
    catalog_name varchar(255) NOT NULL,
    table_namespace varchar(255) NOT NULL,
    table_name varchar(255) NOT NULL,
    metadata_location varchar(1000),
    previous_metadata_location varchar(1000),
    iceberg_type varchar(5),
    PRIMARY KEY (catalog_name, table_namespace, table_name)
);
CREATE TABLE auditord.iceberg_namespace_properties (
    catalog_name varchar(255) NOT NULL,
    namespace varchar(255) NOT NULL,
    property_key varchar(255) NOT NULL,
    property_value varchar(1000) NOT NULL,
    PRIMARY KEY (catalog_name, namespace, property_key)
);
