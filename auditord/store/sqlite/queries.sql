-- The statements of the record store in SQLite. Names in braces are lists of columns, see auditord/store/columns.py.

-- name: has_released
-- Whether one of the ids is of a released record: looked at once for all that are added together, since a trigger, or a
-- condition of the insertion, would double what a record costs.
SELECT EXISTS (SELECT 1 FROM released WHERE record_id IN (SELECT value FROM json_each(?1)))

-- name: overwrite_records
-- Put a record in the place of the stored one; when the run was first heard of stays.
UPDATE records
SET
    position = (SELECT max(position) FROM removals WHERE record_id = :record_id),
    {overwritten}
WHERE record_id = :record_id

-- name: move_records
-- Change when a record started and stopped, and its wire text with it.
UPDATE records
SET
    position = (SELECT max(position) FROM removals WHERE record_id = ?1),
    start_time = ?2, stop_time = ?3, document = ?5, updated_at = ?6
WHERE record_id = ?1

-- name: find_records
-- Records by id, as far as plans need them; released ones with their releases, and without a document.
SELECT records.record_id, start_time, stop_time, content, document, NULL
FROM json_each(:wanted) AS wanted
INNER JOIN records ON records.record_id = json_extract(wanted.value, '$.record_id')
UNION ALL
SELECT released.record_id, start_time, stop_time, content, NULL, release
FROM json_each(:wanted) AS wanted
INNER JOIN released ON released.record_id = json_extract(wanted.value, '$.record_id')

-- name: lock_records
-- The same; nobody else writes.
SELECT records.record_id, start_time, stop_time, content, document
FROM json_each(:ids) AS wanted
INNER JOIN records ON records.record_id = wanted.value

-- name: get_documents
-- The wire texts of records; of released ones, their releases.
SELECT record_id, document, NULL
FROM records
WHERE record_id IN (SELECT value FROM json_each(:ids))
UNION ALL
SELECT record_id, NULL, release
FROM released
WHERE record_id IN (SELECT value FROM json_each(:ids))

-- name: find_source
-- The number of a principal and its client.
SELECT source_id
FROM sources
WHERE principal IS nullif(:principal, '') AND agent IS nullif(:agent, '')

-- name: insert_source
-- Give a principal and its client a number.
INSERT INTO sources (principal, agent)
VALUES (nullif(:principal, ''), nullif(:agent, ''))

-- name: find_score_set
-- The number of what components score.
SELECT score_set
FROM score_sets
WHERE scores = :scores

-- name: insert_score_set
-- Give what components score a number.
INSERT INTO score_sets (scores)
VALUES (:scores)

-- name: note_differences
-- Keep a record that differs from the stored one; one that came before comes to the top.
INSERT OR REPLACE INTO differences (record_id, content, offered, seen_at, source_id)
VALUES (:record_id, :content, :document, :received_at, :source_id)

-- name: settle_differences
-- Forget the differences of records that have been overwritten.
DELETE FROM differences
WHERE record_id IN (SELECT value FROM json_each(:ids))

-- name: list_differences
-- All differences, the newest first, with what is stored now (nothing if it is released).
SELECT
    differences.record_id, differences.seen_at, sources.principal, records.document, differences.offered
FROM differences
LEFT JOIN records ON records.record_id = differences.record_id
INNER JOIN sources ON sources.source_id = differences.source_id
ORDER BY differences.seq DESC

-- name: list_differences_of
-- The same of one record.
SELECT
    differences.record_id, differences.seen_at, sources.principal, records.document, differences.offered
FROM differences
LEFT JOIN records ON records.record_id = differences.record_id
INNER JOIN sources ON sources.source_id = differences.source_id
WHERE differences.record_id = :record_id
ORDER BY differences.seq DESC

-- name: keep_versions
-- Keep a record as it is before it is changed on purpose.
INSERT INTO versions (
    record_id, action, reason, changed_at, changed_by, received_at, updated_at, source_id, document
)
SELECT record_id, ?2, ?3, ?4, ?5, received_at, updated_at, source_id, document
FROM records
WHERE record_id = ?1

-- name: redact_records
-- Change what the meta of a record decides, and its wire text.
UPDATE records
SET
    position = (SELECT max(position) FROM removals WHERE record_id = :record_id),
    {redacted}
WHERE record_id = :record_id

-- name: versions_of_records
-- The wire texts of what records were.
SELECT number, document
FROM versions
WHERE record_id IN (SELECT value FROM json_each(:ids))

-- name: versions_with_text
-- The wire texts of former versions that hold a text.
SELECT number, document
FROM versions
WHERE instr(document, :text) > 0

-- name: redact_version
-- Change the wire text of a former version.
UPDATE versions
SET document = :document
WHERE number = :number

-- name: differences_with_text
-- The wire texts of differences that hold a text.
SELECT record_id, content, offered
FROM differences
WHERE instr(offered, :text) > 0

-- name: forget_difference
-- Forget a difference.
DELETE FROM differences
WHERE record_id = :record_id AND content = :content

-- name: find_deleted
-- Which records were deleted on purpose, and are not there again.
SELECT DISTINCT record_id
FROM versions
WHERE
    action = 'delete'
    AND record_id IN (SELECT value FROM json_each(:ids))
    AND NOT EXISTS (SELECT 1 FROM records WHERE records.record_id = versions.record_id)
    AND NOT EXISTS (SELECT 1 FROM released WHERE released.record_id = versions.record_id)

-- name: delete_records
-- Delete records.
DELETE FROM records
WHERE record_id IN (SELECT value FROM json_each(:ids))

-- name: list_versions
-- What a record was before each change, the oldest first.
SELECT
    versions.number, versions.action, versions.reason, versions.changed_at, changers.principal,
    versions.document, versions.received_at, versions.updated_at, sources.principal
FROM versions
INNER JOIN sources AS changers ON changers.source_id = versions.changed_by
INNER JOIN sources ON sources.source_id = versions.source_id
WHERE versions.record_id = :record_id
ORDER BY versions.number

-- name: fill_probe
-- Take room for a large record.
INSERT INTO probe (filling)
VALUES (zeroblob(32768))

-- name: empty_probe
-- Give the room back.
DELETE FROM probe

-- name: unfinished_copy
-- Which store is being copied here.
SELECT source
FROM unfinished_copy

-- name: find_generation
-- How far a spool has come.
SELECT generation
FROM spools
WHERE spool_id = :spool_id

-- name: set_generation
-- Note how far a spool has come.
INSERT INTO spools (spool_id, generation)
VALUES (:spool_id, :generation)
ON CONFLICT (spool_id) DO UPDATE SET generation = excluded.generation

-- name: note_daemon
-- Note how a daemon fares.
INSERT OR REPLACE INTO daemons (
    spool_id, host, process, version, state_dir, started_at, seen_at, ended, queued, oldest, quarantined
)
VALUES (
    :spool_id, :host, :process, :version, :state_dir, :started_at, :now, :ended, :queued, :oldest, :quarantined
)

-- name: forget_daemons
-- Forget daemons of which nothing was heard for a month.
DELETE FROM daemons
WHERE seen_at < :now - 2592000000000

-- name: list_daemons
-- The daemons, and the microseconds since each was heard of.
SELECT
    spool_id, host, process, version, state_dir, started_at, ended, queued, oldest, quarantined, max(:now - seen_at, 0)
FROM daemons
ORDER BY host, spool_id
