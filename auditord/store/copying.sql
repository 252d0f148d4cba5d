-- Statements that copy a whole store (auditord/store/copying). auditord/store/statements.py has the names in braces.

-- name: count_records
-- The number of records.
SELECT count(*)
FROM {schema}records

-- name: read_records
-- The records after an id, in the order of ids.
SELECT
    records.record_id, records.document, records.content, {micros records.received_at}, {micros records.updated_at},
    nullif(origins.principal, ''), nullif(origins.agent, '')
FROM {schema}records
INNER JOIN {schema}origins ON origins.origin_id = records.origin_id
WHERE records.record_id > :after
ORDER BY records.record_id
LIMIT :limit

-- name: read_origins
-- The origins of records with their numbers.
SELECT origin_id, nullif(principal, ''), nullif(agent, '')
FROM {schema}origins

-- name: is_empty
-- Whether the store is empty.
SELECT NOT EXISTS (
    SELECT 1 FROM {schema}records
    UNION ALL SELECT 1 FROM {schema}versions
    UNION ALL SELECT 1 FROM {schema}plugin_state
    UNION ALL SELECT 1 FROM {schema}released
)

-- name: begin_copy
-- Keep programs from using the store until the copy is finished.
INSERT INTO {schema}unfinished_copy (source)
VALUES (:source)

-- name: finish_copy
-- Note that the copy is complete.
DELETE FROM {schema}unfinished_copy

-- name: forget_record_counts
-- Delete all counts.
DELETE FROM {schema}record_counts

-- name: forget_consumers
-- Delete all consumers.
DELETE FROM {schema}consumers
WHERE name <> 'rollup:0'
