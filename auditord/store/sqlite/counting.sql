-- The statements behind the counts of records.

-- name: list_counted_keys
-- The keys whose values are counted, and the last record whose values have been written down.
SELECT meta_key, up_to
FROM counted_keys

-- name: first_uncounted
-- The last record that all counted keys have written down.
SELECT min(up_to)
FROM counted_keys

-- name: last_record
-- The number of the newest record.
SELECT coalesce(max(seq), 0)
FROM records

-- name: start_counting
-- Count the values of a key, from the first record on.
INSERT INTO counted_keys (meta_key, up_to)
VALUES (?, 0)

-- name: stop_counting
-- Count the values of a key no more.
DELETE FROM counted_keys
WHERE meta_key = ?

-- name: forget_counts
-- Drop what has been written down for a key.
DELETE FROM record_counts
WHERE meta_key = ?

-- name: note_progress
-- All counted keys have been written down up to a record.
UPDATE counted_keys
SET up_to = ?

-- name: note_removal
-- The newest records have been deleted.
UPDATE counted_keys
SET up_to = min(up_to, ?)

-- name: list_counts
-- What has been written down for a key.
SELECT meta_value, records
FROM record_counts
WHERE meta_key = ?

-- name: has_count
-- One row if records with a value under a key have been written down.
SELECT 1
FROM record_counts
WHERE meta_key = ? AND meta_value = ? AND records <> 0

-- name: arrivals
-- How many records have come after one; under no value, and no row if there is none.
SELECT '' AS no_value, count(*)
FROM records
WHERE seq > ?
GROUP BY no_value

-- name: arrivals_by_site
-- The same by site, for the records whose columns are complete.
SELECT site, count(*)
FROM records
WHERE seq > ? AND more IS NULL AND site IS NOT NULL
GROUP BY site

-- name: arrivals_by_group
-- The same by group.
SELECT user_group, count(*)
FROM records
WHERE seq > ? AND more IS NULL AND user_group IS NOT NULL
GROUP BY user_group

-- name: arrivals_by_user
-- The same by user.
SELECT user_name, count(*)
FROM records
WHERE seq > ? AND more IS NULL AND user_name IS NOT NULL
GROUP BY user_name

-- name: arrivals_by_rare_value
-- The same for the records whose columns are incomplete: each record once per distinct value.
SELECT entry.value, count(*)
FROM records, json_each(records.document, '$.meta') AS meta, json_each(meta.value) AS entry
WHERE
    records.seq > ? AND records.more IS NOT NULL AND meta.key = ?
    AND NOT EXISTS (
        SELECT 1 FROM json_each(meta.value) AS earlier WHERE earlier.value = entry.value AND earlier.key < entry.key
    )
GROUP BY entry.value

-- name: arrivals_by_value
-- The same for a key that has no column.
SELECT entry.value, count(*)
FROM records, json_each(records.document, '$.meta') AS meta, json_each(meta.value) AS entry
WHERE
    records.seq > ? AND meta.key = ?
    AND NOT EXISTS (
        SELECT 1 FROM json_each(meta.value) AS earlier WHERE earlier.value = entry.value AND earlier.key < entry.key
    )
GROUP BY entry.value

-- name: count_differences
-- How many records came with other content than was stored; few, unless something is wrong.
SELECT count(*)
FROM differences
