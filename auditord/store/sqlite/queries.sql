-- The statements of the record store in SQLite.

-- name: insert_record
-- Add a record whose id is free; the row count tells.
INSERT INTO records (
    record_id, start_time, stop_time, site, user_group, user_name, more, cores, memory, gpu, total_cpu, content, document,
    score_set, received_at, source_id
)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (record_id) DO NOTHING

-- name: overwrite_record
-- Put a record in the place of the stored one; when the run was first heard of stays.
UPDATE records
SET
    start_time = ?, stop_time = ?, site = ?, user_group = ?, user_name = ?, more = ?, cores = ?, memory = ?, gpu = ?,
    total_cpu = ?, content = ?, document = ?, score_set = ?, updated_at = ?,
    source_id = ?
WHERE seq = ?

-- name: move_times
-- Change when a record started and stopped, and its wire text with it.
UPDATE records
SET start_time = ?, stop_time = ?, document = ?, updated_at = ?
WHERE seq = ?

-- name: find_record
-- What there is under an id, as far as verdicts need it.
SELECT seq, start_time, stop_time, content, CAST(document AS BLOB)
FROM records
WHERE record_id = ?

-- name: get_document
-- The wire text of one record.
SELECT CAST(document AS BLOB)
FROM records
WHERE record_id = ?

-- name: get_documents
-- The wire texts of records.
SELECT record_id, CAST(document AS BLOB)
FROM records
WHERE record_id IN (SELECT value FROM json_each(?))

-- name: find_source
-- The number of a principal and its client.
SELECT source_id
FROM sources
WHERE principal IS ? AND agent IS ?

-- name: insert_source
-- Give a principal and its client a number.
INSERT INTO sources (principal, agent)
VALUES (?, ?)

-- name: find_score_set
-- The number of what components score.
SELECT score_set
FROM score_sets
WHERE scores = ?

-- name: insert_score_set
-- Give what components score a number.
INSERT INTO score_sets (scores)
VALUES (?)

-- name: note_difference
-- Keep a record that differs from the stored one; one that came before comes to the top.
INSERT OR REPLACE INTO differences (record_id, content, offered, seen_at, source_id)
VALUES (?, ?, ?, ?, ?)

-- name: settle_differences
-- Forget the differences of a record that has been overwritten.
DELETE FROM differences
WHERE record_id = ?

-- name: list_differences
-- All differences, the newest first, with what is stored now.
SELECT
    differences.record_id, differences.seen_at, sources.principal, CAST(records.document AS BLOB),
    CAST(differences.offered AS BLOB)
FROM differences
INNER JOIN records ON records.record_id = differences.record_id
INNER JOIN sources ON sources.source_id = differences.source_id
ORDER BY differences.seq DESC

-- name: keep_version
-- Keep a record as it is before somebody changes it.
INSERT INTO versions (
    record_id, action, reason, changed_at, changed_by, received_at, updated_at, source_id, document
)
SELECT record_id, ?, ?, ?, ?, received_at, updated_at, source_id, document
FROM records
WHERE seq = ?

-- name: redact_record
-- Change what the meta of a record decides, and its wire text.
UPDATE records
SET site = ?, user_group = ?, user_name = ?, more = ?, content = ?, document = ?
WHERE seq = ?

-- name: versions_of_record
-- The wire texts of what a record was.
SELECT number, CAST(document AS BLOB)
FROM versions
WHERE record_id = ?

-- name: versions_with_text
-- The wire texts of former versions that hold a text.
SELECT number, CAST(document AS BLOB)
FROM versions
WHERE instr(document, ?) > 0

-- name: redact_version
-- Change the wire text of a former version.
UPDATE versions
SET document = ?
WHERE number = ?

-- name: differences_with_text
-- The wire texts of differences that hold a text.
SELECT seq, CAST(offered AS BLOB)
FROM differences
WHERE instr(offered, ?) > 0

-- name: forget_difference
-- Forget a difference.
DELETE FROM differences
WHERE seq = ?

-- name: find_deleted
-- Which records were deleted on purpose, and are not there again.
SELECT DISTINCT record_id
FROM versions
WHERE
    action = 'delete'
    AND record_id IN (SELECT value FROM json_each(?))
    AND NOT EXISTS (SELECT 1 FROM records WHERE records.record_id = versions.record_id)

-- name: delete_record
-- Delete a record, with its differences.
DELETE FROM records
WHERE seq = ?

-- name: list_versions
-- What a record was before each change, the oldest first.
SELECT
    versions.number, versions.action, versions.reason, versions.changed_at, changers.principal,
    CAST(versions.document AS BLOB), versions.received_at, versions.updated_at, sources.principal
FROM versions
INNER JOIN sources AS changers ON changers.source_id = versions.changed_by
INNER JOIN sources ON sources.source_id = versions.source_id
WHERE versions.record_id = ?
ORDER BY versions.number

-- name: put_outbox
-- Keep a change for senders.
INSERT INTO outbox (operation, document, received_at, source_id)
VALUES (?, ?, ?, ?)

-- name: list_outbox
-- The changes that have waited longest.
SELECT
    outbox.number, outbox.operation, CAST(outbox.document AS BLOB), outbox.received_at, sources.principal, sources.agent
FROM outbox
INNER JOIN sources ON sources.source_id = outbox.source_id
ORDER BY outbox.number
LIMIT ?

-- name: forget_outbox
-- Drop a change that has been forwarded.
DELETE FROM outbox
WHERE number = ?

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
WHERE spool_id = ?

-- name: set_generation
-- Note how far a spool has come.
INSERT INTO spools (spool_id, generation)
VALUES (?, ?)
ON CONFLICT (spool_id) DO UPDATE SET generation = excluded.generation
