-- The statements behind the archive.

-- name: archive_state
-- The state of the archive that counts.
SELECT
    archive_id, location, snapshot_id, sequence, chunk, records, beside_rollups,
    (extract(EPOCH FROM first_stop) * 1000000)::bigint, (extract(EPOCH FROM last_stop) * 1000000)::bigint
FROM auditord.archive

-- name: lock_archive
-- The same, kept from being changed by others until the transaction ends.
SELECT
    archive_id, location, snapshot_id, sequence, chunk, records, beside_rollups,
    (extract(EPOCH FROM first_stop) * 1000000)::bigint, (extract(EPOCH FROM last_stop) * 1000000)::bigint
FROM auditord.archive
FOR UPDATE

-- name: begin_archive
-- Note which table is the archive.
UPDATE auditord.archive
SET archive_id = %(archive_id)s, location = %(location)s

-- name: note_snapshot
-- A later snapshot counts from now on.
UPDATE auditord.archive
SET snapshot_id = %(snapshot_id)s, sequence = %(sequence)s
WHERE sequence < %(sequence)s

-- name: note_chunk
-- A chunk counts from now on.
UPDATE auditord.archive
SET
    chunk = %(chunk)s, records = records + %(records)s, beside_rollups = beside_rollups + %(beside_rollups)s,
    first_stop = least(first_stop, %(first_stop)s), last_stop = greatest(last_stop, %(last_stop)s)

-- name: note_fewer_archived
-- Archived records have become fewer.
UPDATE auditord.archive
SET records = records - %(records)s, beside_rollups = beside_rollups - %(beside_rollups)s

-- name: list_archivable
-- Finished records behind one that stopped before an instant, which some sites have of their own, in the order of their
-- stops; those that all consumers of the feed have read.
SELECT
    records.document, (extract(EPOCH FROM records.received_at) * 1000000)::bigint,
    (extract(EPOCH FROM records.updated_at) * 1000000)::bigint, sources.principal, sources.agent
FROM auditord.records
INNER JOIN auditord.sources ON sources.source_id = records.source_id
WHERE
    stop_time < %(latest)s AND stop_time >= %(after_stop)s
    AND stop_time < coalesce(
        'epoch'::timestamptz + (%(sites)s::jsonb ->> site)::bigint * INTERVAL '1 microsecond', %(before)s
    )
    AND (stop_time, record_id) > (%(after_stop)s, %(after_id)s)
    AND records.position <= (SELECT min(position) FROM auditord.consumers)
ORDER BY stop_time, record_id
LIMIT %(limit)s

-- name: lock_archivable
-- Records as they are now, kept from being changed by others until the transaction ends; always in one order.
SELECT
    record_id, (extract(EPOCH FROM start_time) * 1000000)::bigint, (extract(EPOCH FROM stop_time) * 1000000)::bigint,
    content, document, position, (extract(EPOCH FROM updated_at) * 1000000)::bigint
FROM auditord.records
WHERE record_id = ANY (ARRAY(SELECT jsonb_array_elements_text(%(ids)s::jsonb)))
ORDER BY record_id
FOR UPDATE

-- name: hold_records
-- Wait for transactions that write records, and let no other begin to until this one ends: so nobody looks for archived ids
-- while records are added, see add_records. Those who bring records back lock the archive's row before, as this one does.
LOCK TABLE auditord.records IN SHARE ROW EXCLUSIVE MODE

-- name: put_archived
-- Note that records are in the archive.
INSERT INTO auditord.archived_records (record_id, start_time, stop_time, content, chunk, position)
SELECT record_id, start_time, stop_time, content, chunk, position
FROM jsonb_to_recordset(%s::jsonb) AS archived (
    record_id text, start_time timestamptz, stop_time timestamptz, content bigint, chunk bigint, position bigint
)

-- name: put_removals
-- Rows of the archive's table count no more.
INSERT INTO auditord.archive_removals (record_id, chunk)
SELECT record_id, chunk
FROM jsonb_to_recordset(%s::jsonb) AS removed (record_id text, chunk bigint)
ON CONFLICT DO NOTHING

-- name: list_removals
-- The rows of the archive's table that count no more.
SELECT record_id, chunk
FROM auditord.archive_removals

-- name: forget_removals
-- Rows are in the archive's table no more.
DELETE FROM auditord.archive_removals
USING jsonb_to_recordset(%s::jsonb) AS removed (record_id text, chunk bigint)
WHERE archive_removals.record_id = removed.record_id AND archive_removals.chunk = removed.chunk

-- name: find_archived
-- Which records are in the archive, and in which chunk.
SELECT record_id, chunk
FROM auditord.archived_records
WHERE record_id = ANY (ARRAY(SELECT jsonb_array_elements_text(%(ids)s::jsonb)))

-- name: lock_archived
-- The same with their positions, kept from being changed by others until the transaction ends; always in one order.
SELECT record_id, chunk, position
FROM auditord.archived_records
WHERE record_id = ANY (ARRAY(SELECT jsonb_array_elements_text(%(ids)s::jsonb)))
ORDER BY record_id
FOR UPDATE

-- name: forget_archived
-- Records are in the archive no more.
DELETE FROM auditord.archived_records
WHERE record_id = ANY (ARRAY(SELECT jsonb_array_elements_text(%(ids)s::jsonb)))

-- name: restore_records
-- Give records that have come back their former positions, and when they had been changed.
UPDATE auditord.records
SET position = restored.position, updated_at = restored.updated_at
FROM jsonb_to_recordset(%s::jsonb) AS restored (record_id text, position bigint, updated_at timestamptz)
WHERE records.record_id = restored.record_id
