-- The statements for the lake. auditord/store/statements.py has the names in braces.

-- name: read_lake
-- The store's side of the lake.
SELECT
    store_id, lake_id, given, released_in, location, snapshot_id, sequence, release, records, beside_rollups,
    {micros first_stop}, {micros last_stop}
FROM {schema}lake

-- name: lock_lake
-- Lock the store's side of the lake until the transaction ends.
SELECT
    store_id, lake_id, given, released_in, location, snapshot_id, sequence, release, records, beside_rollups,
    {micros first_stop}, {micros last_stop}
FROM {schema}lake
{lock}

-- name: set_lake
-- Set the table that records are synced to.
UPDATE {schema}lake
SET lake_id = :lake_id

-- name: note_given
-- Save the highest number of a batch.
UPDATE {schema}lake
SET given = {greatest}(given, :given)

-- name: count_unread
-- The number of versions after a position.
SELECT
    (SELECT count(*) FROM {schema}records WHERE position > :position)
    + (SELECT count(*) FROM {schema}removals WHERE position > :position AND former <= :position)

-- name: removed_in_slice
-- Versions from before a slice that were removed in it, except those of released records: the lake has their only copy.
SELECT record_id, {micros stop_time}
FROM {schema}removals
WHERE
    position > :after AND position <= :upto AND former <= :after
    AND NOT EXISTS (SELECT 1 FROM {schema}released WHERE released.record_id = removals.record_id)

-- name: records_of_slice
-- The ids of records in a slice.
SELECT record_id
FROM {schema}records
WHERE position > :after AND position <= :upto

-- name: recalled_of_slice
-- Released rows that do not count, whose records were deleted or are in a slice, so that its batch replaces them.
SELECT recalled.record_id, release, {micros recalled.stop_time}
FROM {schema}recalled
LEFT JOIN {schema}records ON records.record_id = recalled.record_id
WHERE records.position IS NULL OR (records.position > :after AND records.position <= :upto)

-- name: read_records_by_id
-- Records by id, with everything that the store keeps of them.
SELECT
    records.document, {micros records.received_at}, {micros records.updated_at}, origins.principal, origins.agent
FROM {schema}records
INNER JOIN {schema}origins ON origins.origin_id = records.origin_id
WHERE records.record_id {any ids}

-- name: note_snapshot
-- Set the snapshot from which released records are read, unless it is an older one.
UPDATE {schema}lake
SET snapshot_id = :snapshot_id, sequence = :sequence
WHERE sequence < :sequence

-- name: note_release
-- Save a valid release.
UPDATE {schema}lake
SET
    release = :release, records = records + :records, beside_rollups = beside_rollups + :beside_rollups,
    first_stop = {least}(coalesce(first_stop, :first_stop), coalesce(:first_stop, first_stop)),
    last_stop = {greatest}(coalesce(last_stop, :last_stop), coalesce(:last_stop, last_stop)),
    released_in = :lake_id, location = :location

-- name: pass_release
-- Raise the last valid release. All rows up to this number must count.
UPDATE {schema}lake
SET release = {greatest}(release, :release)

-- name: note_fewer_released
-- Subtract from the number of released records.
UPDATE {schema}lake
SET records = records - :records, beside_rollups = beside_rollups - :beside_rollups

-- name: lock_releasable
-- Lock records until the transaction ends, always in the same order.
SELECT
    record_id, content, position, document, {micros received_at}, {micros updated_at},
    coalesce(origins.principal, ''), coalesce(origins.agent, '')
FROM {schema}records
INNER JOIN {schema}origins ON origins.origin_id = records.origin_id
WHERE record_id {any ids}
ORDER BY record_id
{lock OF records}

-- name: list_recalled
-- The released rows that do not count.
SELECT record_id, release, {micros stop_time}
FROM {schema}recalled

-- name: list_recalled_and_kept
-- Released rows that do not count, whose records are in the database exactly as in the lake. The plus sign avoids the
-- index of positions: few records are recalled, and most positions match.
SELECT recalled.record_id, release, {micros recalled.stop_time}
FROM {schema}recalled
INNER JOIN {schema}records ON records.record_id = recalled.record_id
WHERE +records.position <= :position

-- name: find_released
-- Those of the records that are released.
SELECT record_id, release, {micros stop_time}
FROM {schema}released
WHERE record_id {any ids}

-- name: lock_released
-- Lock released records until the transaction ends, always in the same order.
SELECT record_id, release, position
FROM {schema}released
WHERE record_id {any ids}
ORDER BY record_id
{lock}

-- name: take_released
-- Delete the ids of recalled records.
DELETE FROM {schema}released
WHERE record_id {any ids}
