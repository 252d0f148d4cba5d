-- What copying a whole store needs. Of each table, rows are read and written with the same columns in both databases.

-- name: count_records
-- How many records there are.
SELECT count(*)
FROM auditord.records

-- name: read_records
-- The records behind an id, in the order of ids.
SELECT
    records.record_id, records.document, records.content, records.received_at, records.updated_at,
    nullif(sources.principal, ''), nullif(sources.agent, '')
FROM auditord.records
INNER JOIN auditord.sources ON sources.source_id = records.source_id
WHERE records.record_id > %(after)s
ORDER BY records.record_id
LIMIT %(limit)s

-- name: write_records
-- Add records as they were elsewhere.
COPY auditord.records ({record_columns}, updated_at)
FROM STDIN (FORMAT binary)

-- name: remove_records
-- Delete records.
DELETE FROM auditord.records
WHERE record_id = ANY (ARRAY(SELECT jsonb_array_elements_text(%(ids)s::jsonb)))

-- name: read_sources
-- Senders of records.
SELECT nullif(principal, ''), nullif(agent, '')
FROM auditord.sources

-- name: write_sources
-- Give a sender a number that has none.
INSERT INTO auditord.sources (principal, agent)
VALUES (coalesce(%s, ''), coalesce(%s, ''))
ON CONFLICT (principal, agent) DO NOTHING

-- name: read_differences
-- The differences.
SELECT
    differences.arrival, differences.record_id, differences.content, differences.seen_at, nullif(sources.principal, ''),
    nullif(sources.agent, ''), differences.offered
FROM auditord.differences
INNER JOIN auditord.sources ON sources.source_id = differences.source_id
ORDER BY differences.arrival

-- name: write_differences
-- Add a difference.
INSERT INTO auditord.differences (arrival, record_id, content, seen_at, source_id, offered)
VALUES (
    %s, %s, %s, %s,
    (SELECT source_id FROM auditord.sources WHERE principal = coalesce(%s, '') AND agent = coalesce(%s, '')), %s
)

-- name: read_versions
-- The former versions.
SELECT
    versions.number, versions.record_id, versions.action, versions.reason, versions.changed_at,
    nullif(changers.principal, ''), nullif(changers.agent, ''), versions.received_at, versions.updated_at,
    nullif(sources.principal, ''), nullif(sources.agent, ''), versions.document
FROM auditord.versions
INNER JOIN auditord.sources AS changers ON changers.source_id = versions.changed_by
INNER JOIN auditord.sources ON sources.source_id = versions.source_id
ORDER BY versions.number

-- name: write_versions
-- Add a former version.
INSERT INTO auditord.versions (
    number, record_id, action, reason, changed_at, changed_by, received_at, updated_at, source_id, document
)
VALUES (
    %s, %s, %s, %s, %s,
    (SELECT source_id FROM auditord.sources WHERE principal = coalesce(%s, '') AND agent = coalesce(%s, '')), %s, %s,
    (SELECT source_id FROM auditord.sources WHERE principal = coalesce(%s, '') AND agent = coalesce(%s, '')), %s
)

-- name: read_outbox_of_first_release
-- What waits for senders.
SELECT
    outbox.number, outbox.operation, outbox.document, outbox.received_at, nullif(sources.principal, ''),
    nullif(sources.agent, '')
FROM auditord.outbox
INNER JOIN auditord.sources ON sources.source_id = outbox.source_id
ORDER BY outbox.number

-- name: read_plugin_state
-- What plugins keep.
SELECT task, value, saved_at
FROM auditord.plugin_state

-- name: write_plugin_state
-- Keep what a plugin keeps.
INSERT INTO auditord.plugin_state (task, value, saved_at)
VALUES (%s, %s, %s)

-- name: read_spools
-- Which spools deliver here, and how far each has come.
SELECT spool_id, generation
FROM auditord.spools

-- name: write_spools
-- Note how far a spool has come.
INSERT INTO auditord.spools (spool_id, generation)
VALUES (%s, %s)

-- name: read_released
-- The index of released records.
SELECT record_id, start_time, stop_time, content, release
FROM auditord.released

-- name: write_released
-- Note that a record is released; no consumer has read anything here yet.
INSERT INTO auditord.released (record_id, start_time, stop_time, content, release, position)
VALUES (%s, %s, %s, %s, %s, 1)

-- name: read_recalled
-- Rows of the lake that do not count as released.
SELECT record_id, release, stop_time
FROM auditord.recalled

-- name: write_recalled
-- A row of the lake does not count as released.
INSERT INTO auditord.recalled (record_id, release, stop_time)
VALUES (%s, %s, %s)

-- name: read_lake
-- How the lake calls the store, and which of its rows are released records.
SELECT
    store_id, released_in, location, snapshot_id, sequence, release, records, beside_rollups, first_stop, last_stop
FROM auditord.lake

-- name: write_lake
-- Note it; the records have other positions here, so the lake gets all of them again.
INSERT INTO auditord.lake (
    store_id, lake_id, given, released_in, location, snapshot_id, sequence, release, records, beside_rollups, first_stop,
    last_stop
)
VALUES (%s, '', 0, %s, %s, %s, %s, %s, %s, %s, %s, %s)

-- name: last_number
-- The highest number that a column of a table has given.
SELECT coalesce(pg_sequence_last_value(pg_get_serial_sequence('auditord.' || %(table)s, %(column)s)::regclass), 0)

-- name: forget_last_number
-- Nothing: the number is set whatever it was.
SELECT 1

-- name: set_last_number
-- Let a table go on behind a number.
SELECT setval(
    pg_get_serial_sequence('auditord.' || %(table)s, %(column)s), greatest(%(number)s::bigint, 1), %(number)s::bigint > 0
)

-- name: is_empty
-- Whether nothing has been kept here.
SELECT NOT EXISTS (
    SELECT 1 FROM auditord.records
    UNION ALL SELECT 1 FROM auditord.versions
    UNION ALL SELECT 1 FROM auditord.plugin_state
    UNION ALL SELECT 1 FROM auditord.released
)

-- name: unfinished
-- Which store is being copied here.
SELECT source
FROM auditord.unfinished_copy

-- name: begin_copy
-- Let nobody use the store until the copy is finished.
INSERT INTO auditord.unfinished_copy (source)
VALUES (%(source)s)

-- name: finish_copy
-- The copy is complete.
DELETE FROM auditord.unfinished_copy

-- name: last_position
-- The highest position of a record.
SELECT coalesce(max(position), 0)
FROM auditord.records

-- name: write_record_counts
-- Note how many records have a value under a key.
INSERT INTO auditord.record_counts (meta_key, meta_value, records)
VALUES (%s, %s, %s)

-- name: forget_record_counts
-- Begin to count anew.
DELETE FROM auditord.record_counts

-- name: forget_consumers
-- Let consumers begin anew.
DELETE FROM auditord.consumers
WHERE name <> 'rollup:0'

-- name: continue_positions
-- They are those of transactions.
SELECT

-- name: continue_behind_released
-- The same.
SELECT
