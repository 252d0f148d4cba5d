-- The statements behind the lake.

-- name: read_lake
-- Which lake has the records, and the highest number of a batch that was given.
SELECT store_id, lake_id, given
FROM lake

-- name: see_one_moment
-- Nobody else writes.
SELECT 1

-- name: lock_lake
-- The same; nobody else writes.
SELECT store_id, lake_id, given
FROM lake

-- name: begin_lake
-- Give the store the id that the lake knows it by.
INSERT INTO lake (store_id, lake_id, given)
SELECT :store_id, '', 0
WHERE NOT EXISTS (SELECT 1 FROM lake)

-- name: set_lake
-- Note which lake it is.
UPDATE lake
SET lake_id = :lake_id

-- name: note_given
-- Note up to which position a batch is given.
UPDATE lake
SET given = max(given, :given)

-- name: count_unread
-- How many versions lie behind a position.
SELECT
    (SELECT count(*) FROM records WHERE position > :position)
    + (SELECT count(*) FROM archived_records WHERE position > :position)
    + (SELECT count(*) FROM removals WHERE position > :position AND former <= :position)

-- name: removed_in_slice
-- Versions from before a slice that were removed in it.
SELECT record_id, stop_time
FROM removals
WHERE position > :after AND position <= :upto AND former <= :after

-- name: records_of_slice
-- Records of a slice.
SELECT record_id
FROM records
WHERE position > :after AND position <= :upto

-- name: archived_of_slice
-- The same of the archive.
SELECT record_id, chunk
FROM archived_records
WHERE position > :after AND position <= :upto

-- name: read_records_by_id
-- Records as they are now.
SELECT
    records.document, records.received_at, records.updated_at, sources.principal, sources.agent
FROM json_each(:ids) AS wanted
INNER JOIN records ON records.record_id = wanted.value
INNER JOIN sources ON sources.source_id = records.source_id
