-- The statements behind the archive.

-- name: archive_state
-- The state of the archive that counts.
SELECT archive_id, location, snapshot_id, sequence, chunk, records, beside_rollups, first_stop, last_stop
FROM archive

-- name: lock_archive
-- The same; nobody else writes.
SELECT archive_id, location, snapshot_id, sequence, chunk, records, beside_rollups, first_stop, last_stop
FROM archive

-- name: begin_archive
-- Note which table is the archive.
UPDATE archive
SET archive_id = :archive_id, location = :location

-- name: note_snapshot
-- A later snapshot counts from now on.
UPDATE archive
SET snapshot_id = :snapshot_id, sequence = :sequence
WHERE sequence < :sequence

-- name: note_chunk
-- A chunk counts from now on.
UPDATE archive
SET
    chunk = :chunk, records = records + :records, beside_rollups = beside_rollups + :beside_rollups,
    first_stop = min(coalesce(first_stop, :first_stop), :first_stop),
    last_stop = max(coalesce(last_stop, :last_stop), :last_stop)

-- name: note_fewer_archived
-- Archived records have become fewer.
UPDATE archive
SET records = records - :records, beside_rollups = beside_rollups - :beside_rollups

-- name: list_archivable
-- Finished records behind one that stopped before an instant, which some sites have of their own, in the order of their
-- stops; those that all consumers of the feed have read.
SELECT
    records.document, records.received_at, records.updated_at, sources.principal, sources.agent
FROM records
INNER JOIN sources ON sources.source_id = records.source_id
WHERE
    stop_time < :latest AND (stop_time, record_id) > (:after_stop, :after_id)
    AND stop_time < coalesce((SELECT value FROM json_each(:sites) WHERE key = records.site), :before)
    AND records.position <= (SELECT min(position) FROM consumers)
ORDER BY stop_time, record_id
LIMIT :limit

-- name: lock_archivable
-- Records as they are now; nobody else writes.
SELECT records.record_id, start_time, stop_time, content, document, position, updated_at
FROM json_each(:ids) AS wanted
INNER JOIN records ON records.record_id = wanted.value

-- name: hold_records
-- Nobody else writes.
SELECT 1

-- name: put_archived
-- Note that a record is in the archive.
INSERT INTO archived_records (record_id, start_time, stop_time, content, chunk, position)
VALUES (?, ?, ?, ?, ?, ?)

-- name: put_removals
-- A row of the archive's table counts no more.
INSERT OR IGNORE INTO archive_removals (record_id, chunk)
VALUES (?, ?)

-- name: list_removals
-- The rows of the archive's table that count no more.
SELECT record_id, chunk
FROM archive_removals

-- name: forget_removals
-- A row is in the archive's table no more.
DELETE FROM archive_removals
WHERE record_id = ? AND chunk = ?

-- name: find_archived
-- Which records are in the archive, and in which chunk.
SELECT archived_records.record_id, chunk
FROM json_each(:ids) AS wanted
INNER JOIN archived_records ON archived_records.record_id = wanted.value

-- name: lock_archived
-- The same with their positions; nobody else writes.
SELECT archived_records.record_id, chunk, position
FROM json_each(:ids) AS wanted
INNER JOIN archived_records ON archived_records.record_id = wanted.value

-- name: forget_archived
-- Records are in the archive no more.
DELETE FROM archived_records
WHERE record_id IN (SELECT value FROM json_each(:ids))

-- name: restore_records
-- Give a record that has come back its former position, and when it had been changed.
UPDATE records
SET position = ?2, updated_at = ?3
WHERE record_id = ?1
