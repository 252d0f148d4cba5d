-- Sums over the archive open no file where roll-ups have all of its records.

ALTER TABLE archive ADD COLUMN beside_rollups INTEGER NOT NULL DEFAULT 0; -- archived records with `more`
UPDATE archive SET beside_rollups = records; -- perhaps
