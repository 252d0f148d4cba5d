-- The statements of the feed, see auditord/store/feed.py. Names in braces: auditord/store/statements.py.

-- name: list_consumers
-- How far each consumer has read.
SELECT name, position
FROM {schema}consumers
ORDER BY name

-- name: lock_consumers
-- The same of those that nobody else moves at present, kept from being moved by others until the transaction ends.
SELECT name, position
FROM {schema}consumers
WHERE name {any names}
ORDER BY name
{lock SKIP LOCKED}

-- name: has_versions_behind
-- One row if versions were stored or removed behind a position.
SELECT 1
WHERE
    EXISTS (SELECT 1 FROM {schema}records WHERE position > :position)
    OR EXISTS (SELECT 1 FROM {schema}removals WHERE position > :position)

-- name: add_consumer
-- Let a consumer begin, unless there is one.
INSERT INTO {schema}consumers (name, position, updated_at)
VALUES (:name, :position, {now})
ON CONFLICT (name) DO NOTHING

-- name: move_consumer
-- Note how far a consumer has read, unless it has read further already.
UPDATE {schema}consumers
SET position = {greatest}(position, :position), updated_at = {now}
WHERE name = :name

-- name: forget_consumer
-- Remove a consumer.
DELETE FROM {schema}consumers
WHERE name = :name

-- name: passed_by_all
-- The position that every consumer has passed.
SELECT min(position)
FROM {schema}consumers

-- name: oldest_unread
-- When the oldest record arrived that each consumer has not read.
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
-- One row if former versions are kept.
SELECT 1
FROM {schema}removals
LIMIT 1

-- name: delete_removals
-- Delete what all consumers have passed.
DELETE FROM {schema}removals
WHERE position <= :position

-- name: removals_of_slice
-- Removals of versions in a slice, for senders: those that were removed in it, and those that were there at its end.
SELECT
    removals.record_id, removals.position, removals.former, nullif(sources.principal, ''), removals.operation,
    {micros removals.changed_at}, nullif(changers.principal, ''), nullif(changers.agent, '')
FROM {schema}removals
INNER JOIN {schema}sources ON sources.source_id = removals.source_id
LEFT JOIN {schema}sources AS changers ON changers.source_id = removals.changed_by
WHERE
    (removals.position > :after AND removals.position <= :upto)
    OR (removals.former > :after AND removals.former <= :upto)
ORDER BY removals.position

-- name: forwardable_of_slice
-- Records of a slice that a client brought, and those that were changed in it, as they are now.
SELECT
    records.record_id, records.position, records.document, {micros records.received_at},
    nullif(sources.principal, ''), nullif(sources.agent, '')
FROM {schema}records
INNER JOIN {schema}sources ON sources.source_id = records.source_id
WHERE
    (
        records.position > :after AND records.position <= :upto
        AND (sources.principal IS NULL OR substr(sources.principal, 1, 5) <> 'task:')
    )
    OR records.record_id {any changed}
ORDER BY records.position, records.record_id

-- name: has_removals_behind
-- One row if versions up to a position were removed behind it.
SELECT 1
FROM {schema}removals
WHERE position > :position AND former <= :position
LIMIT 1

-- name: list_rolled_keys
-- The sets of cells, and how far each has read the feed.
SELECT rolled_keys.number, rolled_keys.meta_key, rolled_keys.filled_from, consumers.position
FROM {schema}rolled_keys
INNER JOIN {schema}consumers ON consumers.name = 'rollup:' || rolled_keys.number
ORDER BY rolled_keys.number

-- name: add_rolled_key
-- Let a key have cells.
INSERT INTO {schema}rolled_keys (number, meta_key, filled_from)
VALUES (:number, :meta_key, :filled_from)

-- name: forget_rolled_key
-- Let it have none.
DELETE FROM {schema}rolled_keys
WHERE number = :number

-- name: set_filled_from
-- Sets of cells have records from a day on.
UPDATE {schema}rolled_keys
SET filled_from = :filled_from

-- name: drop_cells
-- Delete the cells of some levels.
DELETE FROM {schema}rollups
WHERE level >= :first AND level < :behind

-- name: drop_component_cells
-- The same of further components.
DELETE FROM {schema}rollup_components
WHERE level >= :first AND level < :behind

-- name: drop_empty_component_cells
-- Delete cells of further components that no record is in any more.
DELETE FROM {schema}rollup_components
WHERE records = 0

-- name: days_of_rollups
-- The first and the last day that have cells; each is one look into the index.
SELECT
    (SELECT min(period) FROM {schema}rollups WHERE level = 1),
    (SELECT max(period) FROM {schema}rollups WHERE level = 1)

-- name: list_counted_keys
-- The keys whose values are counted, and how far each has been.
SELECT substr(name, 7), position
FROM {schema}consumers
WHERE substr(name, 1, 6) = 'count:'

-- name: forget_counts
-- Drop what has been counted for a key.
DELETE FROM {schema}record_counts
WHERE meta_key = :key

-- name: list_counts
-- What has been counted.
SELECT meta_key, meta_value, records
FROM {schema}record_counts

-- name: count_differences
-- How many records came with other content than was stored; few, unless something is wrong.
SELECT count(*)
FROM {schema}differences
