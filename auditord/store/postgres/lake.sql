-- The statements behind the lake.

-- name: read_lake
-- Which lake has the records, and the highest number of a batch that was given.
SELECT store_id, lake_id, given
FROM auditord.lake

-- name: see_one_moment
-- All that the transaction reads is of the moment of its next statement; another that changed the same begins anew.
SET TRANSACTION ISOLATION LEVEL REPEATABLE READ

-- name: lock_lake
-- The same, kept from being changed by others until the transaction ends.
SELECT store_id, lake_id, given
FROM auditord.lake
FOR UPDATE

-- name: begin_lake
-- Give the store the id that the lake knows it by.
INSERT INTO auditord.lake (store_id, lake_id, given)
SELECT %(store_id)s, '', 0
WHERE NOT EXISTS (SELECT 1 FROM auditord.lake)

-- name: set_lake
-- Note which lake it is.
UPDATE auditord.lake
SET lake_id = %(lake_id)s

-- name: note_given
-- Note up to which position a batch is given.
UPDATE auditord.lake
SET given = greatest(given, %(given)s)

-- name: count_unread
-- How many versions lie behind a position.
SELECT
    (SELECT count(*) FROM auditord.records WHERE position > %(position)s)
    + (SELECT count(*) FROM auditord.archived_records WHERE position > %(position)s)
    + (SELECT count(*) FROM auditord.removals WHERE position > %(position)s AND former <= %(position)s)

-- name: removed_in_slice
-- Versions from before a slice that were removed in it.
SELECT record_id, (extract(EPOCH FROM stop_time) * 1000000)::bigint
FROM auditord.removals
WHERE position > %(after)s AND position <= %(upto)s AND former <= %(after)s

-- name: records_of_slice
-- Records of a slice.
SELECT record_id
FROM auditord.records
WHERE position > %(after)s AND position <= %(upto)s

-- name: archived_of_slice
-- The same of the archive.
SELECT record_id, chunk
FROM auditord.archived_records
WHERE position > %(after)s AND position <= %(upto)s

-- name: read_records_by_id
-- Records as they are now.
SELECT
    records.document, (extract(EPOCH FROM records.received_at) * 1000000)::bigint,
    (extract(EPOCH FROM records.updated_at) * 1000000)::bigint, sources.principal, sources.agent
FROM auditord.records
INNER JOIN auditord.sources ON sources.source_id = records.source_id
WHERE records.record_id = ANY (ARRAY(SELECT jsonb_array_elements_text(%(ids)s::jsonb)))
