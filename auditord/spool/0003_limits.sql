-- The roles of a client whose change rests on the stored record, which could not be looked at: JSON, checked before the
-- change is applied. NULL: nothing is left to check.
ALTER TABLE queue ADD COLUMN limits BLOB;
ALTER TABLE quarantine ADD COLUMN limits BLOB;
