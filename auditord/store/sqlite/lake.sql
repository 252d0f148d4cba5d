-- The statements behind the lake.

-- name: note_new_lake_changes
-- Note that records are new, where there is a lake.
INSERT INTO lake_changes (record_id, known)
SELECT value, 0
FROM json_each(:ids)
WHERE EXISTS (SELECT 1 FROM lake WHERE lake_id <> '')

-- name: note_lake_changes
-- Note that records have changed, where there is a lake.
INSERT INTO lake_changes (record_id, known, stop_time)
SELECT ?1, ?2, ?3
WHERE EXISTS (SELECT 1 FROM lake WHERE lake_id <> '')

-- name: read_lake
-- Which lake has the records, and which batch was the last.
SELECT store_id, lake_id, batch
FROM lake

-- name: see_one_moment
-- Nobody else writes.
SELECT 1

-- name: lock_lake
-- The same; nobody else writes.
SELECT store_id, lake_id, batch
FROM lake

-- name: hold_lake
-- Nobody else writes.
SELECT 1

-- name: begin_lake
-- Give the store the id that the lake knows it by.
INSERT INTO lake (store_id, lake_id, batch)
SELECT :store_id, '', 0
WHERE NOT EXISTS (SELECT 1 FROM lake)

-- name: set_lake
-- Note which lake it is.
UPDATE lake
SET lake_id = :lake_id

-- name: note_lake_batch
-- Note which batch is the last.
UPDATE lake
SET batch = :batch

-- name: drop_lake_changes
-- Forget all changes.
DELETE FROM lake_changes

-- name: note_all_records
-- Note every record, of the archive as well, as new.
INSERT INTO lake_changes (record_id, known)
SELECT record_id, 0
FROM records
UNION ALL
SELECT record_id, 0
FROM archived_records

-- name: forget_lake_changes
-- Forget what the lake has.
DELETE FROM lake_changes
WHERE batch <= :position

-- name: retry_lake_changes
-- Let wait again what was given a number and may have arrived or not.
UPDATE lake_changes
SET batch = NULL, known = 1
WHERE batch IS NOT NULL

-- name: list_lake_changes
-- The changes that have waited longest.
SELECT number, record_id, known, stop_time
FROM lake_changes
ORDER BY number
LIMIT :limit

-- name: number_lake_changes
-- Note with which batch changes are synced.
UPDATE lake_changes
SET batch = :batch
WHERE number IN (SELECT value FROM json_each(:numbers))

-- name: count_lake_changes
-- How many changes wait.
SELECT count(*)
FROM lake_changes

-- name: read_records_by_id
-- Records as they are now.
SELECT
    records.document, records.received_at, records.updated_at, sources.principal, sources.agent
FROM json_each(:ids) AS wanted
INNER JOIN records ON records.record_id = wanted.value
INNER JOIN sources ON sources.source_id = records.source_id
