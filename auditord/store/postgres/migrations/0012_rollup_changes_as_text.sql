-- Changes of the roll-ups are appended with each transaction, read once, and hardly ever asked anything: as text they need
-- not be taken apart when they come, nor be put together when they are folded.
ALTER TABLE auditord.rollup_changes ALTER COLUMN changes TYPE text COLLATE "C" USING changes::text;
ALTER TABLE auditord.rollup_changes ALTER COLUMN changes SET STORAGE EXTERNAL; -- short-lived: not worth compressing
