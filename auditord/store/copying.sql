-- What copying a whole store needs, see auditord/store/copying. Names in braces: auditord/store/statements.py.

-- name: count_records
-- How many records there are.
SELECT count(*)
FROM {schema}records

-- name: read_records
-- The records behind an id, in the order of ids.
SELECT
    records.record_id, records.document, records.content, {micros records.received_at}, {micros records.updated_at},
    nullif(sources.principal, ''), nullif(sources.agent, '')
FROM {schema}records
INNER JOIN {schema}sources ON sources.source_id = records.source_id
WHERE records.record_id > :after
ORDER BY records.record_id
LIMIT :limit

-- name: read_sources
-- Senders of records, by their numbers.
SELECT source_id, nullif(principal, ''), nullif(agent, '')
FROM {schema}sources

-- name: is_empty
-- Whether nothing has been kept here.
SELECT NOT EXISTS (
    SELECT 1 FROM {schema}records
    UNION ALL SELECT 1 FROM {schema}versions
    UNION ALL SELECT 1 FROM {schema}plugin_state
    UNION ALL SELECT 1 FROM {schema}released
)

-- name: begin_copy
-- Let nobody use the store until the copy is finished.
INSERT INTO {schema}unfinished_copy (source)
VALUES (:source)

-- name: finish_copy
-- The copy is complete.
DELETE FROM {schema}unfinished_copy

-- name: forget_record_counts
-- Begin to count anew.
DELETE FROM {schema}record_counts

-- name: forget_consumers
-- Let consumers begin anew.
DELETE FROM {schema}consumers
WHERE name <> 'rollup:0'
