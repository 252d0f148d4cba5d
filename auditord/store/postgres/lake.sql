-- The statements behind the lake.

-- name: note_lake_changes
-- Note that records have changed, where there is a lake.
INSERT INTO auditord.lake_changes (record_id, known, stop_time)
SELECT record_id, known, stop_time
FROM jsonb_to_recordset(%s::jsonb) AS changed (record_id text, known smallint, stop_time bigint)
WHERE EXISTS (SELECT 1 FROM auditord.lake WHERE lake_id <> '')

-- name: read_lake
-- Which lake has the records, and which batch was the last.
SELECT store_id, lake_id, batch
FROM auditord.lake

-- name: see_one_moment
-- All that the transaction reads is of the moment of its next statement; another that changed the same begins anew.
SET TRANSACTION ISOLATION LEVEL REPEATABLE READ

-- name: lock_lake
-- The same, kept from being changed by others until the transaction ends.
SELECT store_id, lake_id, batch
FROM auditord.lake
FOR UPDATE

-- name: hold_lake
-- Wait for transactions that write records, and let no other begin to until this one ends: they note their changes,
-- or are seen here.
LOCK TABLE auditord.records IN SHARE MODE

-- name: begin_lake
-- Give the store the id that the lake knows it by.
INSERT INTO auditord.lake (store_id, lake_id, batch)
SELECT %(store_id)s, '', 0
WHERE NOT EXISTS (SELECT 1 FROM auditord.lake)

-- name: set_lake
-- Note which lake it is.
UPDATE auditord.lake
SET lake_id = %(lake_id)s

-- name: note_lake_batch
-- Note which batch is the last.
UPDATE auditord.lake
SET batch = %(batch)s

-- name: drop_lake_changes
-- Forget all changes.
DELETE FROM auditord.lake_changes

-- name: note_all_records
-- Note every record, of the archive as well, as new.
INSERT INTO auditord.lake_changes (record_id, known)
SELECT record_id, 0
FROM auditord.records
UNION ALL
SELECT record_id, 0
FROM auditord.archived_records

-- name: forget_lake_changes
-- Forget what the lake has.
DELETE FROM auditord.lake_changes
WHERE batch <= %(position)s

-- name: retry_lake_changes
-- Let wait again what was given a number and may have arrived or not.
UPDATE auditord.lake_changes
SET batch = NULL, known = 1
WHERE batch IS NOT NULL

-- name: list_lake_changes
-- The changes that have waited longest.
SELECT number, record_id, known, stop_time
FROM auditord.lake_changes
ORDER BY number
LIMIT %(limit)s

-- name: number_lake_changes
-- Note with which batch changes are synced.
UPDATE auditord.lake_changes
SET batch = %(batch)s
WHERE number IN (SELECT value::bigint FROM jsonb_array_elements_text(%(numbers)s::jsonb) AS numbered (value))

-- name: count_lake_changes
-- How many changes wait.
SELECT count(*)
FROM auditord.lake_changes

-- name: read_records_by_id
-- Records as they are now.
SELECT
    records.document, (extract(EPOCH FROM records.received_at) * 1000000)::bigint,
    (extract(EPOCH FROM records.updated_at) * 1000000)::bigint, sources.principal, sources.agent
FROM auditord.records
INNER JOIN auditord.sources ON sources.source_id = records.source_id
WHERE records.record_id = ANY (ARRAY(SELECT jsonb_array_elements_text(%(ids)s::jsonb)))
