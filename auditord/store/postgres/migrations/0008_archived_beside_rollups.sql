-- Sums over the archive open no file where roll-ups have all of its records.

ALTER TABLE auditord.archive ADD COLUMN beside_rollups bigint NOT NULL DEFAULT 0; -- archived records with `more`
UPDATE auditord.archive SET beside_rollups = records; -- perhaps
