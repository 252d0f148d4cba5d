-- The statements behind the lake.

-- name: read_lake
-- The store's side of the lake.
SELECT
    store_id, lake_id, given, released_in, location, snapshot_id, sequence, release, records, beside_rollups,
    (extract(EPOCH FROM first_stop) * 1000000)::bigint, (extract(EPOCH FROM last_stop) * 1000000)::bigint
FROM auditord.lake

-- name: see_one_moment
-- All that the transaction reads is of the moment of its next statement; another that changed the same begins anew.
SET TRANSACTION ISOLATION LEVEL REPEATABLE READ

-- name: lock_lake
-- The same, kept from being changed by others until the transaction ends.
SELECT
    store_id, lake_id, given, released_in, location, snapshot_id, sequence, release, records, beside_rollups,
    (extract(EPOCH FROM first_stop) * 1000000)::bigint, (extract(EPOCH FROM last_stop) * 1000000)::bigint
FROM auditord.lake
FOR UPDATE

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
    + (SELECT count(*) FROM auditord.removals WHERE position > %(position)s AND former <= %(position)s)

-- name: removed_in_slice
-- Versions from before a slice that were removed in it, but of released records: the lake has the only copy of those.
SELECT record_id, (extract(EPOCH FROM stop_time) * 1000000)::bigint
FROM auditord.removals
WHERE
    position > %(after)s AND position <= %(upto)s AND former <= %(after)s
    AND NOT EXISTS (SELECT 1 FROM auditord.released WHERE released.record_id = removals.record_id)

-- name: records_of_slice
-- Records of a slice.
SELECT record_id
FROM auditord.records
WHERE position > %(after)s AND position <= %(upto)s

-- name: recalled_of_slice
-- Rows of releases that do not count, whose records are gone, or are in a slice: its batch replaces them.
SELECT recalled.record_id, release, (extract(EPOCH FROM recalled.stop_time) * 1000000)::bigint
FROM auditord.recalled
LEFT JOIN auditord.records ON records.record_id = recalled.record_id
WHERE records.position IS NULL OR (records.position > %(after)s AND records.position <= %(upto)s)

-- name: read_records_by_id
-- Records as they are now.
SELECT
    records.document, (extract(EPOCH FROM records.received_at) * 1000000)::bigint,
    (extract(EPOCH FROM records.updated_at) * 1000000)::bigint, sources.principal, sources.agent
FROM auditord.records
INNER JOIN auditord.sources ON sources.source_id = records.source_id
WHERE records.record_id = ANY (ARRAY(SELECT jsonb_array_elements_text(%(ids)s::jsonb)))

-- name: note_snapshot
-- Released records are read from a later snapshot from now on.
UPDATE auditord.lake
SET snapshot_id = %(snapshot_id)s, sequence = %(sequence)s
WHERE sequence < %(sequence)s

-- name: note_release
-- A release counts from now on.
UPDATE auditord.lake
SET
    release = %(release)s, records = records + %(records)s, beside_rollups = beside_rollups + %(beside_rollups)s,
    first_stop = least(first_stop, %(first_stop)s::timestamptz),
    last_stop = greatest(last_stop, %(last_stop)s::timestamptz),
    released_in = %(lake_id)s, location = %(location)s

-- name: pass_release
-- Releases up to a number count; none of their rows is another record.
UPDATE auditord.lake
SET release = greatest(release, %(release)s)

-- name: note_fewer_released
-- Released records have become fewer.
UPDATE auditord.lake
SET records = records - %(records)s, beside_rollups = beside_rollups - %(beside_rollups)s

-- name: lock_releasable
-- Records as they are now, kept from being changed by others until the transaction ends; always in one order.
SELECT
    record_id, content, position, document, (extract(EPOCH FROM received_at) * 1000000)::bigint,
    (extract(EPOCH FROM updated_at) * 1000000)::bigint, sources.principal, sources.agent
FROM auditord.records
INNER JOIN auditord.sources ON sources.source_id = records.source_id
WHERE record_id = ANY (ARRAY(SELECT jsonb_array_elements_text(%(ids)s::jsonb)))
ORDER BY record_id
FOR UPDATE OF records

-- name: hold_records
-- Wait for transactions that write records, and let no other begin to until this one ends: so nobody looks for released ids
-- while records are added, see add_records. Those who bring records back lock the lake's row before, as this one does.
LOCK TABLE auditord.records IN SHARE ROW EXCLUSIVE MODE

-- name: put_released
-- Note that records are released.
INSERT INTO auditord.released (record_id, start_time, stop_time, content, release, position)
SELECT record_id, start_time, stop_time, content, release, position
FROM jsonb_to_recordset(%s::jsonb) AS gone (
    record_id text, start_time timestamptz, stop_time timestamptz, content bigint, release bigint, position bigint
)

-- name: put_recalled
-- Rows of a release do not count.
INSERT INTO auditord.recalled (record_id, release, stop_time)
SELECT record_id, release, 'epoch'::timestamptz + stop_time * INTERVAL '1 microsecond'
FROM jsonb_to_recordset(%s::jsonb) AS kept (record_id text, release bigint, stop_time bigint)
ON CONFLICT DO NOTHING

-- name: list_recalled
-- The rows of releases that do not count.
SELECT record_id, release, (extract(EPOCH FROM stop_time) * 1000000)::bigint
FROM auditord.recalled

-- name: list_recalled_and_kept
-- Those whose records are in the database as the lake has them.
SELECT recalled.record_id, release, (extract(EPOCH FROM recalled.stop_time) * 1000000)::bigint
FROM auditord.recalled
INNER JOIN auditord.records ON records.record_id = recalled.record_id
WHERE records.position <= %(position)s

-- name: forget_recalled
-- Rows are in the lake no more.
DELETE FROM auditord.recalled
USING jsonb_to_recordset(%s::jsonb) AS gone (record_id text, release bigint)
WHERE recalled.record_id = gone.record_id AND recalled.release = gone.release

-- name: find_released
-- Which records are released.
SELECT record_id, release, (extract(EPOCH FROM stop_time) * 1000000)::bigint
FROM auditord.released
WHERE record_id = ANY (ARRAY(SELECT jsonb_array_elements_text(%(ids)s::jsonb)))

-- name: lock_released
-- The same with their positions, kept from being changed by others until the transaction ends; always in one order.
SELECT record_id, release, position
FROM auditord.released
WHERE record_id = ANY (ARRAY(SELECT jsonb_array_elements_text(%(ids)s::jsonb)))
ORDER BY record_id
FOR UPDATE

-- name: take_released
-- Records are released no more.
DELETE FROM auditord.released
WHERE record_id = ANY (ARRAY(SELECT jsonb_array_elements_text(%(ids)s::jsonb)))

-- name: restore_records
-- Give records that have come back their former positions, and when they had been changed.
UPDATE auditord.records
SET position = restored.position, updated_at = restored.updated_at
FROM jsonb_to_recordset(%s::jsonb) AS restored (record_id text, position bigint, updated_at timestamptz)
WHERE records.record_id = restored.record_id
