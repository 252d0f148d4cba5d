-- The statements behind the lake.

-- name: read_lake
-- The store's side of the lake.
SELECT
    store_id, lake_id, given, released_in, location, snapshot_id, sequence, release, records, beside_rollups, first_stop,
    last_stop
FROM lake

-- name: see_one_moment
-- Nobody else writes.
SELECT 1

-- name: lock_lake
-- The same; nobody else writes.
SELECT
    store_id, lake_id, given, released_in, location, snapshot_id, sequence, release, records, beside_rollups, first_stop,
    last_stop
FROM lake

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
    + (SELECT count(*) FROM removals WHERE position > :position AND former <= :position)

-- name: removed_in_slice
-- Versions from before a slice that were removed in it, but of released records: the lake has the only copy of those.
SELECT record_id, stop_time
FROM removals
WHERE
    position > :after AND position <= :upto AND former <= :after
    AND NOT EXISTS (SELECT 1 FROM released WHERE released.record_id = removals.record_id)

-- name: records_of_slice
-- Records of a slice.
SELECT record_id
FROM records
WHERE position > :after AND position <= :upto

-- name: recalled_of_slice
-- Rows of releases that do not count, whose records are gone, or are in a slice: its batch replaces them.
SELECT recalled.record_id, release, recalled.stop_time
FROM recalled
LEFT JOIN records ON records.record_id = recalled.record_id
WHERE records.position IS NULL OR (records.position > :after AND records.position <= :upto)

-- name: read_records_by_id
-- Records as they are now.
SELECT
    records.document, records.received_at, records.updated_at, sources.principal, sources.agent
FROM json_each(:ids) AS wanted
INNER JOIN records ON records.record_id = wanted.value
INNER JOIN sources ON sources.source_id = records.source_id

-- name: note_snapshot
-- Released records are read from a later snapshot from now on.
UPDATE lake
SET snapshot_id = :snapshot_id, sequence = :sequence
WHERE sequence < :sequence

-- name: note_release
-- A release counts from now on.
UPDATE lake
SET
    release = :release, records = records + :records, beside_rollups = beside_rollups + :beside_rollups,
    first_stop = min(coalesce(first_stop, :first_stop), coalesce(:first_stop, first_stop)),
    last_stop = max(coalesce(last_stop, :last_stop), coalesce(:last_stop, last_stop)),
    released_in = :lake_id, location = :location

-- name: pass_release
-- Releases up to a number count; none of their rows is another record.
UPDATE lake
SET release = max(release, :release)

-- name: note_fewer_released
-- Released records have become fewer.
UPDATE lake
SET records = records - :records, beside_rollups = beside_rollups - :beside_rollups

-- name: lock_releasable
-- Records as they are now; nobody else writes.
SELECT
    records.record_id, content, position, document, received_at, updated_at, coalesce(sources.principal, ''),
    coalesce(sources.agent, '')
FROM json_each(:ids) AS wanted
INNER JOIN records ON records.record_id = wanted.value
INNER JOIN sources ON sources.source_id = records.source_id

-- name: hold_records
-- Nobody else writes.
SELECT 1

-- name: put_released
-- Note that a record is released.
INSERT INTO released (record_id, start_time, stop_time, content, release, position)
VALUES (?, ?, ?, ?, ?, ?)

-- name: put_recalled
-- A row of a release does not count.
INSERT OR IGNORE INTO recalled (record_id, release, stop_time)
VALUES (?, ?, ?)

-- name: list_recalled
-- The rows of releases that do not count.
SELECT record_id, release, stop_time
FROM recalled

-- name: list_recalled_and_kept
-- Those whose records are in the database as the lake has them.
SELECT recalled.record_id, release, recalled.stop_time
FROM recalled
INNER JOIN records ON records.record_id = recalled.record_id
WHERE records.position <= :position

-- name: forget_recalled
-- A row is in the lake no more.
DELETE FROM recalled
WHERE record_id = ?1 AND release = ?2 AND stop_time = ?3

-- name: find_released
-- Which records are released.
SELECT released.record_id, release, stop_time
FROM json_each(:ids) AS wanted
INNER JOIN released ON released.record_id = wanted.value

-- name: lock_released
-- The same with their positions; nobody else writes.
SELECT released.record_id, release, position
FROM json_each(:ids) AS wanted
INNER JOIN released ON released.record_id = wanted.value

-- name: take_released
-- Records are released no more.
DELETE FROM released
WHERE record_id IN (SELECT value FROM json_each(:ids))

-- name: restore_records
-- Give a record that has come back its former position, and when it had been changed.
UPDATE records
SET position = ?2, updated_at = ?3
WHERE record_id = ?1
