-- The statements that maintain the counts.

-- name: note_changes
-- Append what a transaction changed in the counts.
INSERT INTO auditord.count_changes (changes)
VALUES (%(changes)s::jsonb)

-- name: add_up
-- Add up what transactions have appended and nobody else is adding up; says which counted keys some daemon did not know.
WITH taken AS (
    DELETE FROM auditord.count_changes
    WHERE ctid = ANY (ARRAY(SELECT ctid FROM auditord.count_changes LIMIT 10000 FOR UPDATE SKIP LOCKED))
    RETURNING changes
),
added AS (
    INSERT INTO auditord.record_counts (meta_key, meta_value, records)
    SELECT by_key.key, by_value.key, sum(by_value.value::bigint)
    FROM taken, jsonb_each(taken.changes) AS by_key, jsonb_each_text(by_key.value) AS by_value
    GROUP BY by_key.key, by_value.key
    ORDER BY by_key.key, by_value.key -- in one order, so that nobody waits in a circle
    ON CONFLICT (meta_key, meta_value) DO UPDATE SET records = record_counts.records + EXCLUDED.records
)
SELECT counted_keys.meta_key
FROM auditord.counted_keys
WHERE EXISTS (SELECT 1 FROM taken WHERE NOT taken.changes ? counted_keys.meta_key)

-- name: any_changes
-- Whether there is anything to add up.
SELECT EXISTS (SELECT 1 FROM auditord.count_changes)

-- name: list_counted_keys
-- The keys whose values are counted.
SELECT meta_key
FROM auditord.counted_keys

-- name: start_counting
-- Remember that the values of keys are counted from now on.
INSERT INTO auditord.counted_keys (meta_key)
SELECT jsonb_array_elements_text(%(keys)s::jsonb)
ON CONFLICT DO NOTHING

-- name: stop_counting
-- Forget that the values of keys were counted.
DELETE FROM auditord.counted_keys
WHERE meta_key = ANY (ARRAY(SELECT jsonb_array_elements_text(%(keys)s::jsonb)))

-- name: forget_counts
-- Drop the counts of keys.
DELETE FROM auditord.record_counts
WHERE meta_key = ANY (ARRAY(SELECT jsonb_array_elements_text(%(keys)s::jsonb)))

-- name: recount
-- Count what is stored under keys, each record once per distinct value.
INSERT INTO auditord.record_counts (meta_key, meta_value, records)
SELECT wanted.key, entry.value, count(DISTINCT records.record_id)
FROM
    jsonb_array_elements_text(%(keys)s::jsonb) AS wanted (key),
    auditord.records,
    jsonb_array_elements_text(records.meta -> wanted.key) AS entry (value)
GROUP BY wanted.key, entry.value

-- name: list_counts
-- All counts as of now; a value that no record has any more is left out.
SELECT meta_key, meta_value, sum(records)::bigint
FROM (
    SELECT meta_key, meta_value, records
    FROM auditord.record_counts
    UNION ALL
    SELECT by_key.key, by_value.key, by_value.value::bigint
    FROM
        auditord.count_changes, jsonb_each(count_changes.changes) AS by_key, jsonb_each_text(by_key.value) AS by_value
) AS parts
GROUP BY meta_key, meta_value
HAVING sum(records) > 0

-- name: count_differences
-- How many records came with other content than was stored; few, unless something is wrong.
SELECT count(*)
FROM auditord.differences
