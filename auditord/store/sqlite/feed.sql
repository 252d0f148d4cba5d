-- The statements of the feed, see auditord/store/feed.py.

-- name: list_consumers
-- How far each consumer has read.
SELECT name, position
FROM consumers
ORDER BY name

-- name: lock_consumers
-- The same of some; nobody else writes.
SELECT name, position
FROM consumers
WHERE name IN (SELECT value FROM json_each(:names))
ORDER BY name

-- name: end_of_feed
-- The last position that was given.
SELECT coalesce(max(seq), 0)
FROM sqlite_sequence
WHERE name = 'records'

-- name: end_of_slice
-- The end of a slice of so many records.
SELECT min(:end, :after + :limit)

-- name: has_versions_behind
-- One row if versions were stored or removed behind a position.
SELECT 1
WHERE
    EXISTS (SELECT 1 FROM records WHERE position > :position)
    OR EXISTS (SELECT 1 FROM removals WHERE position > :position)

-- name: add_consumer
-- Let a consumer begin, unless there is one.
INSERT INTO consumers (name, position, updated_at)
VALUES (:name, :position, CAST(strftime('%s', 'now') AS INTEGER) * 1000000)
ON CONFLICT (name) DO NOTHING

-- name: move_consumer
-- Note how far a consumer has read, unless it has read further already.
UPDATE consumers
SET position = max(position, :position), updated_at = CAST(strftime('%s', 'now') AS INTEGER) * 1000000
WHERE name = :name

-- name: forget_consumer
-- Remove a consumer.
DELETE FROM consumers
WHERE name = :name

-- name: passed_by_all
-- The position that every consumer has passed.
SELECT min(position)
FROM consumers

-- name: oldest_unread
-- When the oldest record arrived that each consumer has not read.
SELECT
    name,
    (SELECT received_at FROM records WHERE records.position > consumers.position ORDER BY records.position LIMIT 1)
FROM consumers

-- name: note_removals
-- Keep a stored version under the next position.
INSERT INTO removals (position, former, operation, changed_at, changed_by, {removed_columns})
SELECT
    1 + max(
        (SELECT seq FROM sqlite_sequence WHERE name = 'records'), coalesce((SELECT max(position) FROM removals), 0)
    ),
    position, ?2, ?3, ?4, {removed_columns}
FROM records
WHERE record_id = ?1

-- name: continue_positions
-- Give the positions of removals to nothing else.
UPDATE sqlite_sequence
SET seq = max(seq, (SELECT max(position) FROM removals))
WHERE name = 'records'

-- name: touch_records
-- Give a record the position of the removal of its former version.
UPDATE records
SET position = (SELECT max(position) FROM removals WHERE record_id = ?1)
WHERE record_id = ?1

-- name: note_forwards
-- Let senders forward a record that was just added, whoever brought it: a version that was never there is removed.
INSERT INTO removals (
    position, former, record_id, start_time, stop_time, source_id, operation, changed_at, changed_by
)
SELECT position, position, record_id, start_time, stop_time, source_id, ?2, ?3, ?4
FROM records
WHERE record_id = ?1

-- name: has_removals
-- One row if former versions are kept.
SELECT 1
FROM removals
LIMIT 1

-- name: delete_removals
-- Delete what all consumers have passed.
DELETE FROM removals
WHERE position <= :position

-- name: scrub_removals
-- Keep no names of what all counts and sums have passed.
UPDATE removals
SET document = NULL, user_name = NULL
WHERE position <= :position AND document IS NOT NULL

-- name: removals_of_slice
-- Removals of versions in a slice, for senders: those that were removed in it, and those that were there at its end.
SELECT
    removals.record_id, removals.position, removals.former, sources.principal, removals.operation, removals.changed_at,
    changers.principal, changers.agent
FROM removals
INNER JOIN sources ON sources.source_id = removals.source_id
LEFT JOIN sources AS changers ON changers.source_id = removals.changed_by
WHERE
    (removals.position > :after AND removals.position <= :upto)
    OR (removals.former > :after AND removals.former <= :upto)
ORDER BY removals.position

-- name: forwardable_of_slice
-- Records of a slice that a client brought, and those that were changed in it, as they are now.
SELECT
    records.record_id, records.position, records.document, records.received_at, sources.principal, sources.agent
FROM records
INNER JOIN sources ON sources.source_id = records.source_id
WHERE
    (
        records.position > :after AND records.position <= :upto
        AND (sources.principal IS NULL OR sources.principal NOT GLOB 'task:*')
    )
    OR records.record_id IN (SELECT value FROM json_each(:changed))
ORDER BY records.position

-- name: has_removals_behind
-- One row if versions up to a position were removed behind it.
SELECT 1
FROM removals
WHERE position > :position AND former <= :position
LIMIT 1

-- name: list_rolled_keys
-- The sets of cells, and how far each has read the feed.
SELECT rolled_keys.number, rolled_keys.meta_key, rolled_keys.filled_from, consumers.position
FROM rolled_keys
INNER JOIN consumers ON consumers.name = 'rollup:' || rolled_keys.number
ORDER BY rolled_keys.number

-- name: add_rolled_key
-- Let a key have cells.
INSERT INTO rolled_keys (number, meta_key, filled_from)
VALUES (:number, :meta_key, :filled_from)

-- name: forget_rolled_key
-- Let it have none.
DELETE FROM rolled_keys
WHERE number = :number

-- name: set_filled_from
-- Sets of cells have records from a day on.
UPDATE rolled_keys
SET filled_from = :filled_from

-- name: drop_cells
-- Delete the cells of some levels.
DELETE FROM rollups
WHERE level >= :first AND level < :behind

-- name: drop_component_cells
-- The same of further components.
DELETE FROM rollup_components
WHERE level >= :first AND level < :behind

-- name: drop_empty_cells
-- Delete cells that no record is in any more.
DELETE FROM rollups
WHERE records = 0 AND left_out = 0

-- name: drop_empty_component_cells
-- The same of further components.
DELETE FROM rollup_components
WHERE records = 0

-- name: days_of_rollups
-- The first and the last day that have cells; each is one look into the index.
SELECT
    (SELECT min(period) FROM rollups WHERE level = 1),
    (SELECT max(period) FROM rollups WHERE level = 1)

-- name: rolled_records_of_users
-- How many records of users are in cells of months; nothing while many records are not in the cells.
SELECT coalesce(sum(records), 0)
FROM rollups
WHERE
    level = 2
    AND period IN (
        SELECT value
        FROM json_each(:months)
        WHERE
            value >= (SELECT min(period) FROM rollups WHERE level = 2)
            AND value <= (SELECT max(period) FROM rollups WHERE level = 2)
    )
    AND user_name IN (SELECT value FROM json_each(:users))
HAVING
    (SELECT filled_from = -719162 FROM rolled_keys WHERE number = 0)
    AND (
        SELECT seq - (SELECT position FROM consumers WHERE name = 'rollup:0') < :most
        FROM sqlite_sequence
        WHERE name = 'records'
    )

-- name: list_counted_keys
-- The keys whose values are counted, and how far each has been.
SELECT substr(name, 7), position
FROM consumers
WHERE name GLOB 'count:*'

-- name: forget_counts
-- Drop what has been counted for a key.
DELETE FROM record_counts
WHERE meta_key = :key

-- name: list_counts
-- What has been counted.
SELECT meta_key, meta_value, records
FROM record_counts

-- name: has_count
-- One row if records with one of the values under a key have been counted.
SELECT 1
FROM record_counts
WHERE meta_key = :key AND meta_value IN (SELECT value FROM json_each(:values)) AND records <> 0
LIMIT 1

-- name: count_differences
-- How many records came with other content than was stored; few, unless something is wrong.
SELECT count(*)
FROM differences
