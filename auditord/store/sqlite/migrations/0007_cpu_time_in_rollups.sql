-- Cells of records with and without a CPU time are told apart by their level: 0 to 3 are those of records that have one,
-- 4 to 7 the same sizes of records that have none. What is there mixes both, so the daemon fills the cells anew. Where
-- records are in the archive it cannot: sums are then made of the records.

DELETE FROM rollups;
DELETE FROM rollup_changes;
UPDATE rollup_state
SET filled_to = -719162
WHERE EXISTS (SELECT 1 FROM records) OR EXISTS (SELECT 1 FROM archive WHERE records > 0);
