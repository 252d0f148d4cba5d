-- The statements that are SQLite's own. Names in braces: auditord/store/statements.py.

-- name: has_released
-- Whether one of the ids is of a released record: looked at once for all that are added together, since a trigger, or a
-- condition of the insertion, would double what a record costs.
SELECT EXISTS (SELECT 1 FROM released WHERE record_id {any ids})

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

-- name: fill_probe
-- Take room for a large record.
INSERT INTO probe (filling)
VALUES (zeroblob(32768))

-- name: empty_probe
-- Give the room back.
DELETE FROM probe

-- name: end_of_feed
-- The last position that was given.
SELECT coalesce(max(seq), 0)
FROM sqlite_sequence
WHERE name = 'records'

-- name: end_of_slice
-- The end of a slice of so many records.
SELECT min(:end, :after + :limit)

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

-- name: scrub_removals
-- Keep no names of what all counts and sums have passed.
UPDATE removals
SET document = NULL, user_name = NULL
WHERE position <= :position AND document IS NOT NULL

-- name: drop_empty_cells
-- Delete cells that no record is in any more.
DELETE FROM rollups
WHERE records = 0 AND left_out = 0

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

-- name: has_count
-- One row if records with one of the values under a key have been counted.
SELECT 1
FROM record_counts
WHERE meta_key = :key AND meta_value IN (SELECT value FROM json_each(:values)) AND records <> 0
LIMIT 1

-- name: see_one_moment
-- Nobody else writes.
SELECT 1

-- name: hold_records
-- Nobody else writes.
SELECT 1

-- name: put_released
-- Note that a record is released.
INSERT INTO released (record_id, start_time, stop_time, content, release, position)
VALUES (?, ?, ?, ?, ?, ?)

-- name: put_recalled
-- A row of a release does not count.
INSERT OR IGNORE INTO recalled (record_id, release, stop_time)
VALUES (?, ?, ?)

-- name: forget_recalled
-- A row is in the lake no more.
DELETE FROM recalled
WHERE record_id = ?1 AND release = ?2 AND stop_time = ?3

-- name: restore_records
-- Give a record that has come back its former position, and when it had been changed.
UPDATE records
SET position = ?2, updated_at = ?3
WHERE record_id = ?1

-- name: write_records
-- Add a record as it was elsewhere.
INSERT INTO records ({record_columns}, updated_at)
VALUES ({new_values}, :updated_at)

-- name: last_number
-- The highest number that a table has given.
SELECT coalesce(max(seq), 0)
FROM sqlite_sequence
WHERE name = :table

-- name: set_last_number
-- Let a table go on behind a number.
INSERT OR REPLACE INTO sqlite_sequence (rowid, name, seq)
VALUES ((SELECT rowid FROM sqlite_sequence WHERE name = :table), :table, :number)

-- name: last_position
-- The highest position that was given, or that a released record has.
SELECT
    max(
        coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'records'), 0),
        coalesce((SELECT max(position) FROM released), 0)
    )
