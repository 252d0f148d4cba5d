-- The statements of the feed, see auditord/store/feed.py.

-- name: follow_cluster
-- Go on with higher positions in the cluster of a restored dump.
SELECT auditord.follow_cluster()
WHERE (SELECT cluster FROM auditord.feed) <> (SELECT system_identifier FROM pg_control_system())

-- name: list_consumers
-- How far each consumer has read.
SELECT name, position
FROM auditord.consumers
ORDER BY name

-- name: lock_consumers
-- The same of those that nobody else moves at present, kept from being moved by others until the transaction ends.
SELECT name, position
FROM auditord.consumers
WHERE name = ANY (ARRAY(SELECT jsonb_array_elements_text(%(names)s::jsonb)))
ORDER BY name
FOR UPDATE SKIP LOCKED

-- name: end_of_feed
-- The position up to which no running transaction can add anything.
SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint - 1 + "offset"
FROM auditord.feed

-- name: end_of_slice
-- The end of a slice of about so many records; those of one transaction have one position.
SELECT
    coalesce(
        (
            SELECT position
            FROM auditord.records
            WHERE position > %(after)s AND position <= %(end)s
            ORDER BY position
            OFFSET greatest(%(limit)s - 1, 0)
            LIMIT 1
        ),
        %(end)s
    )

-- name: has_versions_behind
-- One row if versions were stored or removed behind a position.
SELECT 1
WHERE
    EXISTS (SELECT FROM auditord.records WHERE position > %(position)s)
    OR EXISTS (SELECT FROM auditord.removals WHERE position > %(position)s)

-- name: add_consumer
-- Let a consumer begin, unless there is one.
INSERT INTO auditord.consumers (name, position, updated_at)
VALUES (%(name)s, %(position)s, now())
ON CONFLICT (name) DO NOTHING

-- name: move_consumer
-- Note how far a consumer has read, unless it has read further already.
UPDATE auditord.consumers
SET position = greatest(position, %(position)s), updated_at = now()
WHERE name = %(name)s

-- name: forget_consumer
-- Remove a consumer.
DELETE FROM auditord.consumers
WHERE name = %(name)s

-- name: passed_by_all
-- The position that every consumer has passed.
SELECT min(position)
FROM auditord.consumers

-- name: oldest_unread
-- When the oldest record arrived that each consumer has not read.
SELECT
    name,
    (
        SELECT (extract(EPOCH FROM received_at) * 1000000)::bigint
        FROM auditord.records
        WHERE records.position > consumers.position
        ORDER BY records.position
        LIMIT 1
    )
FROM auditord.consumers

-- name: note_removals
-- Keep stored versions.
INSERT INTO auditord.removals (former, operation, changed_at, changed_by, {removed_columns})
SELECT position, removed.operation, removed.changed_at, removed.changed_by, {removed_columns}
FROM auditord.records
INNER JOIN jsonb_to_recordset(%s::jsonb) AS removed (
    record_id text, operation text, changed_at timestamptz, changed_by integer
) USING (record_id)

-- name: continue_positions
-- They are those of transactions.
SELECT

-- name: touch_records
-- Give a record the position of the removal of its former version.
UPDATE auditord.records
SET position = DEFAULT
FROM jsonb_to_recordset(%s::jsonb) AS touched (record_id text)
WHERE records.record_id = touched.record_id

-- name: note_forwards
-- Let senders forward records that were just added, whoever brought them: versions that were never there are removed.
INSERT INTO auditord.removals (
    position, former, record_id, start_time, stop_time, source_id, operation, changed_at, changed_by
)
SELECT
    position, position, records.record_id, start_time, stop_time, source_id, removed.operation, removed.changed_at,
    removed.changed_by
FROM jsonb_to_recordset(%s::jsonb) AS removed (
    record_id text, operation text, changed_at timestamptz, changed_by integer
)
INNER JOIN auditord.records ON records.record_id = removed.record_id

-- name: has_removals
-- One row if former versions are kept.
SELECT 1
FROM auditord.removals
LIMIT 1

-- name: delete_removals
-- Delete what all consumers have passed.
DELETE FROM auditord.removals
WHERE position <= %(position)s

-- name: scrub_removals
-- Keep no names of what all counts and sums have passed.
UPDATE auditord.removals
SET document = NULL, meta = NULL, user_name = NULL
WHERE position <= %(position)s AND document IS NOT NULL

-- name: removals_of_slice
-- Removals of versions in a slice, for senders: those that were removed in it, and those that were there at its end.
SELECT
    removals.record_id, removals.position, removals.former, nullif(sources.principal, ''), removals.operation,
    (extract(EPOCH FROM removals.changed_at) * 1000000)::bigint, nullif(changers.principal, ''),
    nullif(changers.agent, '')
FROM auditord.removals
INNER JOIN auditord.sources ON sources.source_id = removals.source_id
LEFT JOIN auditord.sources AS changers ON changers.source_id = removals.changed_by
WHERE
    (removals.position > %(after)s AND removals.position <= %(upto)s)
    OR (removals.former > %(after)s AND removals.former <= %(upto)s)
ORDER BY removals.position

-- name: forwardable_of_slice
-- Records of a slice that a client brought, and those that were changed in it, as they are now.
SELECT
    records.record_id, records.position, records.document, (extract(EPOCH FROM records.received_at) * 1000000)::bigint,
    nullif(sources.principal, ''), nullif(sources.agent, '')
FROM auditord.records
INNER JOIN auditord.sources ON sources.source_id = records.source_id
WHERE
    (
        records.position > %(after)s AND records.position <= %(upto)s
        AND NOT starts_with(sources.principal, 'task:')
    )
    OR records.record_id = ANY (ARRAY(SELECT jsonb_array_elements_text(%(changed)s::jsonb)))
ORDER BY records.position, records.record_id

-- name: has_removals_behind
-- One row if versions up to a position were removed behind it.
SELECT 1
FROM auditord.removals
WHERE position > %(position)s AND former <= %(position)s
LIMIT 1

-- name: list_rolled_keys
-- The sets of cells, and how far each has read the feed.
SELECT rolled_keys.number, rolled_keys.meta_key, rolled_keys.filled_from, consumers.position
FROM auditord.rolled_keys
INNER JOIN auditord.consumers ON consumers.name = 'rollup:' || rolled_keys.number
ORDER BY rolled_keys.number

-- name: add_rolled_key
-- Let a key have cells.
INSERT INTO auditord.rolled_keys (number, meta_key, filled_from)
VALUES (%(number)s, %(meta_key)s, %(filled_from)s)

-- name: forget_rolled_key
-- Let it have none.
DELETE FROM auditord.rolled_keys
WHERE number = %(number)s

-- name: set_filled_from
-- Sets of cells have records from a day on.
UPDATE auditord.rolled_keys
SET filled_from = %(filled_from)s

-- name: drop_cells
-- Delete the cells of some levels.
DELETE FROM auditord.rollups
WHERE level >= %(first)s AND level < %(behind)s

-- name: drop_component_cells
-- The same of further components.
DELETE FROM auditord.rollup_components
WHERE level >= %(first)s AND level < %(behind)s

-- name: drop_empty_cells
-- Delete cells that no record is in any more.
DELETE FROM auditord.rollups
WHERE records = 0

-- name: drop_empty_component_cells
-- The same of further components.
DELETE FROM auditord.rollup_components
WHERE records = 0

-- name: days_of_rollups
-- The first and the last day that have cells; each is one look into the index.
SELECT
    (SELECT min(period) FROM auditord.rollups WHERE level = 1),
    (SELECT max(period) FROM auditord.rollups WHERE level = 1)

-- name: rolled_records_of_users
-- How many records of users are in cells of months; nothing while many records are not in the cells.
SELECT coalesce(sum(records), 0)::bigint
FROM auditord.rollups
WHERE
    level = 2
    AND user_name = ANY (ARRAY(SELECT jsonb_array_elements_text(%(users)s::jsonb)))
    AND period = ANY (ARRAY(SELECT month::integer FROM jsonb_array_elements_text(%(months)s::jsonb) AS month))
HAVING
    (SELECT filled_from = -719162 FROM auditord.rolled_keys WHERE number = 0)
    AND (
        SELECT count(*)
        FROM (
            SELECT
            FROM auditord.records
            WHERE position > (SELECT consumers.position FROM auditord.consumers WHERE name = 'rollup:0')
            LIMIT greatest(%(most)s, 0)
        ) AS waiting
    ) < %(most)s

-- name: list_counted_keys
-- The keys whose values are counted, and how far each has been.
SELECT substr(name, 7), position
FROM auditord.consumers
WHERE starts_with(name, 'count:')

-- name: forget_counts
-- Drop what has been counted for a key.
DELETE FROM auditord.record_counts
WHERE meta_key = %(key)s

-- name: list_counts
-- What has been counted.
SELECT meta_key, meta_value, records
FROM auditord.record_counts

-- name: count_differences
-- How many records came with other content than was stored; few, unless something is wrong.
SELECT count(*)
FROM auditord.differences
