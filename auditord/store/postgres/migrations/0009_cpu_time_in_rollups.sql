-- Cells of records with and without a CPU time are told apart by their level: 0 to 3 are those of records that have one,
-- 4 to 7 the same sizes of records that have none. What is there mixes both, so the daemon fills the cells anew. Where
-- records are in the archive it cannot: sums are then made of the records.

DELETE FROM auditord.rollups;
DELETE FROM auditord.rollup_changes;
UPDATE auditord.rollup_state
SET filled_to = -719162
WHERE EXISTS (SELECT FROM auditord.records) OR EXISTS (SELECT FROM auditord.archive WHERE records > 0);
