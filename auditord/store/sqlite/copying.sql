-- What copying a whole store needs. Of each table, rows are read and written with the same columns in both databases.

-- name: count_records
-- How many records there are.
SELECT count(*)
FROM records

-- name: read_records
-- The records behind an id, in the order of ids.
SELECT
    records.record_id, records.document, records.content, records.received_at, records.updated_at, sources.principal,
    sources.agent
FROM records
INNER JOIN sources ON sources.source_id = records.source_id
WHERE records.record_id > :after
ORDER BY records.record_id
LIMIT :limit

-- name: write_record
-- Add a record as it was elsewhere.
INSERT INTO records ({record_columns}, updated_at)
VALUES ({new_values}, :updated_at)

-- name: remove_records
-- Delete records.
DELETE FROM records
WHERE record_id IN (SELECT value FROM json_each(:ids))

-- name: read_sources
-- Senders of records.
SELECT principal, agent
FROM sources

-- name: write_sources
-- Give a sender a number that has none.
INSERT INTO sources (principal, agent)
SELECT ?1, ?2
WHERE NOT EXISTS (SELECT 1 FROM sources WHERE principal IS ?1 AND agent IS ?2)

-- name: read_differences
-- The differences.
SELECT
    differences.seq, differences.record_id, differences.content, differences.seen_at, sources.principal, sources.agent,
    differences.offered
FROM differences
INNER JOIN sources ON sources.source_id = differences.source_id
ORDER BY differences.seq

-- name: write_differences
-- Add a difference.
INSERT INTO differences (seq, record_id, content, seen_at, source_id, offered)
VALUES (?1, ?2, ?3, ?4, (SELECT source_id FROM sources WHERE principal IS ?5 AND agent IS ?6), ?7)

-- name: read_versions
-- The former versions.
SELECT
    versions.number, versions.record_id, versions.action, versions.reason, versions.changed_at, changers.principal,
    changers.agent, versions.received_at, versions.updated_at, sources.principal, sources.agent, versions.document
FROM versions
INNER JOIN sources AS changers ON changers.source_id = versions.changed_by
INNER JOIN sources ON sources.source_id = versions.source_id
ORDER BY versions.number

-- name: write_versions
-- Add a former version.
INSERT INTO versions (
    number, record_id, action, reason, changed_at, changed_by, received_at, updated_at, source_id, document
)
VALUES (
    ?1, ?2, ?3, ?4, ?5, (SELECT source_id FROM sources WHERE principal IS ?6 AND agent IS ?7), ?8, ?9,
    (SELECT source_id FROM sources WHERE principal IS ?10 AND agent IS ?11), ?12
)

-- name: read_outbox_of_first_release
-- What waits for senders.
SELECT outbox.number, outbox.operation, outbox.document, outbox.received_at, sources.principal, sources.agent
FROM outbox
INNER JOIN sources ON sources.source_id = outbox.source_id
ORDER BY outbox.number

-- name: read_plugin_state
-- What plugins keep.
SELECT task, CAST(value AS TEXT), saved_at
FROM plugin_state

-- name: write_plugin_state
-- Keep what a plugin keeps.
INSERT INTO plugin_state (task, value, saved_at)
VALUES (?, CAST(? AS BLOB), ?)

-- name: read_spools
-- Which spools deliver here, and how far each has come.
SELECT spool_id, generation
FROM spools

-- name: write_spools
-- Note how far a spool has come.
INSERT INTO spools (spool_id, generation)
VALUES (?, ?)

-- name: read_released
-- The index of released records.
SELECT record_id, start_time, stop_time, content, release
FROM released

-- name: write_released
-- Note that a record is released; no consumer has read anything here yet.
INSERT INTO released (record_id, start_time, stop_time, content, release, position)
SELECT
    ?, ?, ?, ?, ?,
    1 + max(
        coalesce((SELECT max(position) FROM records), 0), coalesce((SELECT max(position) FROM released), 0)
    )

-- name: read_recalled
-- Rows of the lake that do not count as released.
SELECT record_id, release, stop_time
FROM recalled

-- name: write_recalled
-- A row of the lake does not count as released.
INSERT INTO recalled (record_id, release, stop_time)
VALUES (?, ?, ?)

-- name: read_lake
-- How the lake calls the store, and which of its rows are released records.
SELECT
    store_id, released_in, location, snapshot_id, sequence, release, records, beside_rollups, first_stop, last_stop
FROM lake

-- name: write_lake
-- Note it; the records have other positions here, so the lake gets all of them again.
INSERT INTO lake (
    store_id, lake_id, given, released_in, location, snapshot_id, sequence, release, records, beside_rollups, first_stop,
    last_stop
)
VALUES (?, '', 0, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: last_number
-- The highest number that a table has given.
SELECT coalesce(max(seq), 0)
FROM sqlite_sequence
WHERE name = :table

-- name: forget_last_number
-- Let a table begin to count anew.
DELETE FROM sqlite_sequence
WHERE name = :table

-- name: set_last_number
-- Let a table go on behind a number.
INSERT INTO sqlite_sequence (name, seq)
VALUES (:table, :number)

-- name: is_empty
-- Whether nothing has been kept here.
SELECT NOT EXISTS (
    SELECT 1 FROM records
    UNION ALL SELECT 1 FROM versions
    UNION ALL SELECT 1 FROM plugin_state
    UNION ALL SELECT 1 FROM released
)

-- name: unfinished
-- Which store is being copied here.
SELECT source
FROM unfinished_copy

-- name: begin_copy
-- Let nobody use the store until the copy is finished.
INSERT INTO unfinished_copy (source)
VALUES (:source)

-- name: finish_copy
-- The copy is complete.
DELETE FROM unfinished_copy

-- name: last_position
-- The highest position of a record.
SELECT
    max(coalesce((SELECT max(position) FROM records), 0), coalesce((SELECT max(position) FROM released), 0))

-- name: continue_positions
-- Give the positions of released records to nothing else.
INSERT INTO sqlite_sequence (name, seq)
SELECT 'records', 0
WHERE NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = 'records')

-- name: continue_behind_released
-- The same.
UPDATE sqlite_sequence
SET seq = max(seq, coalesce((SELECT max(position) FROM released), 0))
WHERE name = 'records'

-- name: write_record_counts
-- Note how many records have a value under a key.
INSERT INTO record_counts (meta_key, meta_value, records)
VALUES (?, ?, ?)

-- name: forget_record_counts
-- Begin to count anew.
DELETE FROM record_counts

-- name: forget_consumers
-- Let consumers begin anew.
DELETE FROM consumers
WHERE name <> 'rollup:0'
