-- The statements behind the lake. Names in braces: auditord/store/statements.py.

-- name: read_lake
-- The store's side of the lake.
SELECT
    store_id, lake_id, given, released_in, location, snapshot_id, sequence, release, records, beside_rollups,
    {micros first_stop}, {micros last_stop}
FROM {schema}lake

-- name: lock_lake
-- The same, kept from being changed by others until the transaction ends.
SELECT
    store_id, lake_id, given, released_in, location, snapshot_id, sequence, release, records, beside_rollups,
    {micros first_stop}, {micros last_stop}
FROM {schema}lake
{lock}

-- name: set_lake
-- Note which lake it is.
UPDATE {schema}lake
SET lake_id = :lake_id

-- name: note_given
-- Note up to which position a batch is given.
UPDATE {schema}lake
SET given = {greatest}(given, :given)

-- name: count_unread
-- How many versions lie behind a position.
SELECT
    (SELECT count(*) FROM {schema}records WHERE position > :position)
    + (SELECT count(*) FROM {schema}removals WHERE position > :position AND former <= :position)

-- name: removed_in_slice
-- Versions from before a slice that were removed in it, but of released records: the lake has the only copy of those.
SELECT record_id, {micros stop_time}
FROM {schema}removals
WHERE
    position > :after AND position <= :upto AND former <= :after
    AND NOT EXISTS (SELECT 1 FROM {schema}released WHERE released.record_id = removals.record_id)

-- name: records_of_slice
-- Records of a slice.
SELECT record_id
FROM {schema}records
WHERE position > :after AND position <= :upto

-- name: recalled_of_slice
-- Rows of releases that do not count, whose records are gone, or are in a slice: its batch replaces them.
SELECT recalled.record_id, release, {micros recalled.stop_time}
FROM {schema}recalled
LEFT JOIN {schema}records ON records.record_id = recalled.record_id
WHERE records.position IS NULL OR (records.position > :after AND records.position <= :upto)

-- name: read_records_by_id
-- Records as they are now.
SELECT
    records.document, {micros records.received_at}, {micros records.updated_at}, sources.principal, sources.agent
FROM {schema}records
INNER JOIN {schema}sources ON sources.source_id = records.source_id
WHERE records.record_id {any ids}

-- name: note_snapshot
-- Released records are read from a later snapshot from now on.
UPDATE {schema}lake
SET snapshot_id = :snapshot_id, sequence = :sequence
WHERE sequence < :sequence

-- name: note_release
-- A release counts from now on.
UPDATE {schema}lake
SET
    release = :release, records = records + :records, beside_rollups = beside_rollups + :beside_rollups,
    first_stop = {least}(coalesce(first_stop, :first_stop), coalesce(:first_stop, first_stop)),
    last_stop = {greatest}(coalesce(last_stop, :last_stop), coalesce(:last_stop, last_stop)),
    released_in = :lake_id, location = :location

-- name: pass_release
-- Releases up to a number count; none of their rows is another record.
UPDATE {schema}lake
SET release = {greatest}(release, :release)

-- name: note_fewer_released
-- Released records have become fewer.
UPDATE {schema}lake
SET records = records - :records, beside_rollups = beside_rollups - :beside_rollups

-- name: lock_releasable
-- Records as they are now, kept from being changed by others until the transaction ends; always in one order.
SELECT
    record_id, content, position, document, {micros received_at}, {micros updated_at},
    coalesce(sources.principal, ''), coalesce(sources.agent, '')
FROM {schema}records
INNER JOIN {schema}sources ON sources.source_id = records.source_id
WHERE record_id {any ids}
ORDER BY record_id
{lock OF records}

-- name: list_recalled
-- The rows of releases that do not count.
SELECT record_id, release, {micros stop_time}
FROM {schema}recalled

-- name: list_recalled_and_kept
-- Those whose records are in the database as the lake has them. The plus keeps the index of positions out: few records are
-- recalled, and most have such a position.
SELECT recalled.record_id, release, {micros recalled.stop_time}
FROM {schema}recalled
INNER JOIN {schema}records ON records.record_id = recalled.record_id
WHERE +records.position <= :position

-- name: find_released
-- Which records are released.
SELECT record_id, release, {micros stop_time}
FROM {schema}released
WHERE record_id {any ids}

-- name: lock_released
-- The same with their positions, kept from being changed by others until the transaction ends; always in one order.
SELECT record_id, release, position
FROM {schema}released
WHERE record_id {any ids}
ORDER BY record_id
{lock}

-- name: take_released
-- Records are released no more.
DELETE FROM {schema}released
WHERE record_id {any ids}
