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
COPY auditord.records (
    start_time, content, received_at, source_id, stop_time, runtime, record_id, more, cores, memory, gpu, total_cpu,
    score_set, site, user_group, user_name, meta, document, updated_at
)
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

-- name: read_outbox
-- What waits for senders.
SELECT
    outbox.number, outbox.operation, outbox.document, outbox.received_at, nullif(sources.principal, ''),
    nullif(sources.agent, '')
FROM auditord.outbox
INNER JOIN auditord.sources ON sources.source_id = outbox.source_id
ORDER BY outbox.number

-- name: write_outbox
-- Let a change wait for senders.
INSERT INTO auditord.outbox (number, operation, document, received_at, source_id)
VALUES (
    %s, %s, %s, %s,
    (SELECT source_id FROM auditord.sources WHERE principal = coalesce(%s, '') AND agent = coalesce(%s, ''))
)

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

-- name: read_archived_records
-- The index of archived records.
SELECT record_id, start_time, stop_time, content, chunk
FROM auditord.archived_records

-- name: write_archived_records
-- Note that a record is in the archive.
INSERT INTO auditord.archived_records (record_id, start_time, stop_time, content, chunk)
VALUES (%s, %s, %s, %s, %s)

-- name: read_archive_removals
-- The rows of the archive's table that count no more.
SELECT record_id, chunk
FROM auditord.archive_removals

-- name: write_archive_removals
-- A row of the archive's table counts no more.
INSERT INTO auditord.archive_removals (record_id, chunk)
VALUES (%s, %s)

-- name: read_archive
-- The state of the archive that counts.
SELECT archive_id, location, snapshot_id, sequence, chunk, records, beside_rollups, first_stop, last_stop
FROM auditord.archive

-- name: write_archive
-- Note it.
INSERT INTO auditord.archive (archive_id, location, snapshot_id, sequence, chunk, records, beside_rollups, first_stop, last_stop)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s)

-- name: read_score_sets
-- What components score.
SELECT score_set, scores::text
FROM auditord.score_sets
ORDER BY score_set

-- name: forget_score_sets
-- An empty store needs none.
DELETE FROM auditord.score_sets

-- name: write_score_set
-- Give scores the number that they have elsewhere.
INSERT INTO auditord.score_sets (score_set, digest, scores)
OVERRIDING SYSTEM VALUE
VALUES (%(score_set)s, %(digest)s, %(scores)s::jsonb)
ON CONFLICT DO NOTHING

-- name: read_rollup_labels
-- The labels of the cells of roll-ups.
SELECT number, digest, site, user_group, user_name, meta::text
FROM auditord.rollup_labels

-- name: write_rollup_labels
-- Add labels with their number.
INSERT INTO auditord.rollup_labels (number, digest, site, user_group, user_name, meta)
OVERRIDING SYSTEM VALUE
VALUES (%s, %s, %s, %s, %s, %s::jsonb)

-- name: read_rollups
-- The cells of the roll-ups.
SELECT
    level, period, labels, score_set, component, records, amount, runtime_high, runtime_low, first_stop, last_stop,
    gone_first, gone_last, left_out
FROM auditord.rollups

-- name: write_rollups
-- Add a cell.
INSERT INTO auditord.rollups (
    level, period, labels, score_set, component, records, amount, runtime_high, runtime_low, first_stop, last_stop,
    gone_first, gone_last, left_out
)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)

-- name: read_rollup_changes
-- What nobody has folded into the cells yet.
SELECT number, day, size, changes, keys
FROM auditord.rollup_changes

-- name: write_rollup_changes
-- Add changes.
INSERT INTO auditord.rollup_changes (number, day, size, changes, keys)
OVERRIDING SYSTEM VALUE
VALUES (%s, %s, %s, %s, %s)

-- name: read_rollup_state
-- How far the cells are filled.
SELECT filled_to
FROM auditord.rollup_state

-- name: write_rollup_state
-- Note it.
INSERT INTO auditord.rollup_state (filled_to)
VALUES (%s)

-- name: read_rolled_keys
-- The keys with cells of their own.
SELECT number, meta_key, filled_from
FROM auditord.rolled_keys

-- name: write_rolled_keys
-- Add a key.
INSERT INTO auditord.rolled_keys (number, meta_key, filled_from)
VALUES (%s, %s, %s)

-- name: continue_numbers
-- New rows get numbers behind the highest.
SELECT
    setval(
        pg_get_serial_sequence('auditord.score_sets', 'score_set'),
        (SELECT coalesce(max(score_set), 0) + 1 FROM auditord.score_sets), false
    ),
    setval(
        pg_get_serial_sequence('auditord.rollup_labels', 'number'),
        (SELECT coalesce(max(number), 0) + 1 FROM auditord.rollup_labels), false
    )
-- name: read_lake
-- Which lake has the records.
SELECT store_id, lake_id, batch
FROM auditord.lake

-- name: write_lake
-- Note it.
INSERT INTO auditord.lake (store_id, lake_id, batch)
VALUES (%s, %s, %s)

-- name: read_lake_changes
-- The records that it does not have as they are, in order.
SELECT record_id, known, stop_time, batch
FROM auditord.lake_changes
ORDER BY number

-- name: write_lake_changes
-- Note that one is such.
INSERT INTO auditord.lake_changes (record_id, known, stop_time, batch)
VALUES (%s, %s, %s, %s)

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
    UNION ALL SELECT 1 FROM auditord.outbox
    UNION ALL SELECT 1 FROM auditord.plugin_state
    UNION ALL SELECT 1 FROM auditord.archived_records
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

-- name: forget_changes
-- The values of meta keys are counted anew when the store is opened.
DELETE FROM auditord.count_changes

-- name: forget_counted_keys
-- The same.
DELETE FROM auditord.counted_keys

-- name: forget_counts
-- The same.
DELETE FROM auditord.record_counts

-- name: count_all
-- How many records there are is not counted anew by others.
INSERT INTO auditord.record_counts (meta_key, meta_value, records)
SELECT '', '', count(*)
FROM auditord.records
