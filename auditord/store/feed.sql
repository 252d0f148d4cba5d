-- The statements of the feed (auditord/store/feed.py). auditord/store/statements.py has the names in braces.

-- name: list_consumers
-- All consumers, and the positions up to which they have read.
SELECT name, position
FROM {schema}consumers
ORDER BY name

-- name: lock_consumers
-- Lock consumers until the transaction ends, skipping those that others have locked.
SELECT name, position
FROM {schema}consumers
WHERE name {any names}
ORDER BY name
{lock SKIP LOCKED}

-- name: has_versions_behind
-- One row if versions were stored or removed after a position.
SELECT 1
WHERE
    EXISTS (SELECT 1 FROM {schema}records WHERE position > :position)
    OR EXISTS (SELECT 1 FROM {schema}removals WHERE position > :position)

-- name: last_version
-- The position of the last version up to another position, or 0.
SELECT
    {greatest}(
        coalesce((SELECT max(position) FROM {schema}records WHERE position <= :end), 0),
        coalesce((SELECT max(position) FROM {schema}removals WHERE position <= :end), 0)
    )

-- name: add_consumer
-- Add a consumer, unless it exists.
INSERT INTO {schema}consumers (name, position, updated_at)
VALUES (:name, :position, {now})
ON CONFLICT (name) DO NOTHING

-- name: move_consumers
-- Move consumers, except those that have already read further.
UPDATE {schema}consumers
SET position = {greatest}(position, :position), updated_at = {now}
WHERE name {any names}

-- name: forget_consumer
-- Remove a consumer.
DELETE FROM {schema}consumers
WHERE name = :name

-- name: passed_by_all
-- The position that every consumer has passed.
SELECT min(position)
FROM {schema}consumers

-- name: first_unread
-- The position of the first record that some consumer has not read.
SELECT min(position)
FROM {schema}records
WHERE position > (SELECT min(consumers.position) FROM {schema}consumers)

-- name: oldest_unread
-- When each consumer's oldest unread record arrived.
SELECT
    name,
    (
        SELECT {micros received_at}
        FROM {schema}records
        WHERE records.position > consumers.position
        ORDER BY records.position
        LIMIT 1
    )
FROM {schema}consumers

-- name: has_removals
-- One row if there are former versions.
SELECT 1
FROM {schema}removals
LIMIT 1

-- name: delete_removals
-- Delete former versions that all consumers have passed.
DELETE FROM {schema}removals
WHERE position <= :position

-- name: removals_of_slice
-- Removals for senders: of versions that were removed in a slice, or stored in it and removed later.
SELECT
    removals.record_id, removals.position, removals.former, nullif(origins.principal, ''), removals.operation,
    {micros removals.changed_at}, nullif(changers.principal, ''), nullif(changers.agent, '')
FROM {schema}removals
INNER JOIN {schema}origins ON origins.origin_id = removals.origin_id
LEFT JOIN {schema}origins AS changers ON changers.origin_id = removals.changed_by
WHERE
    removals.position > :after -- a version is removed behind its former position
    AND (removals.position <= :upto OR (removals.former > :after AND removals.former <= :upto))
ORDER BY removals.position

-- name: forwardable_of_slice
-- The current versions of records that clients brought in a slice, or that were changed in it.
SELECT
    records.record_id, records.position, records.document, {micros records.received_at},
    nullif(origins.principal, ''), nullif(origins.agent, '')
FROM {schema}records
INNER JOIN {schema}origins ON origins.origin_id = records.origin_id
WHERE
    (
        records.position > :after AND records.position <= :upto
        AND (origins.principal IS NULL OR substr(origins.principal, 1, 5) <> 'task:')
    )
    OR records.record_id {any changed}
ORDER BY records.position, records.record_id

-- name: end_of_feed
-- The position up to which the feed is final.
SELECT {end_of_feed}

-- name: look_behind
-- Whether versions up to a position were removed after it, and the position up to which the feed is final.
SELECT
    EXISTS (SELECT 1 FROM {schema}removals WHERE position > :position AND former <= :position),
    {end_of_feed}

-- name: list_rolled_keys
-- The sets of cells, and the positions up to which they have read the feed.
SELECT rolled_keys.number, rolled_keys.meta_key, rolled_keys.filled_from, consumers.position
FROM {schema}rolled_keys
INNER JOIN {schema}consumers ON consumers.name = 'rollup:' || rolled_keys.number
ORDER BY rolled_keys.number

-- name: add_rolled_key
-- Add a set of cells.
INSERT INTO {schema}rolled_keys (number, meta_key, filled_from)
VALUES (:number, :meta_key, :filled_from)

-- name: forget_rolled_key
-- Delete a set of cells.
DELETE FROM {schema}rolled_keys
WHERE number = :number

-- name: set_filled_from
-- Set the first day whose records are in the cells.
UPDATE {schema}rolled_keys
SET filled_from = :filled_from

-- name: drop_cells
-- Delete the cells of some levels.
DELETE FROM {schema}rollups
WHERE level >= :first AND level < :behind

-- name: drop_component_cells
-- Delete the cells of other components of some levels.
DELETE FROM {schema}rollup_components
WHERE level >= :first AND level < :behind

-- name: drop_empty_component_cells
-- Delete cells of other components without records.
DELETE FROM {schema}rollup_components
WHERE records = 0

-- name: days_of_rollups
-- The first and the last day that have cells. Each is one index lookup.
SELECT
    (SELECT min(period) FROM {schema}rollups WHERE level = 1),
    (SELECT max(period) FROM {schema}rollups WHERE level = 1)

-- name: list_counted_keys
-- The keys whose values are counted, and the positions up to which they have been.
SELECT substr(name, 7), position
FROM {schema}consumers
WHERE substr(name, 1, 6) = 'count:'

-- name: forget_counts
-- Delete the counts of a key.
DELETE FROM {schema}record_counts
WHERE meta_key = :key

-- name: drop_empty_counts
-- Delete the counts of values that no record has under a key, so that names are not kept.
DELETE FROM {schema}record_counts
WHERE meta_key = :key AND records = 0

-- name: list_counts
-- All counts.
SELECT meta_key, meta_value, records
FROM {schema}record_counts

-- name: count_differences
-- The number of differences. There are few, unless something is wrong.
SELECT count(*)
FROM {schema}differences
