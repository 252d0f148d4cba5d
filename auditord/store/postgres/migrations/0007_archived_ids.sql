-- Archived ids are looked for by the statements that add records: a trigger made each of them a quarter dearer.

DROP TRIGGER archive_begun ON auditord.archive;
DROP FUNCTION auditord.begin_archive();
DROP TRIGGER records_not_archived ON auditord.records;
DROP FUNCTION auditord.refuse_archived();

-- Whoever adds an archived record has not seen that it is: looked at again, it is known.
CREATE FUNCTION auditord.refuse_archived(record_id text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the record % is in the archive', record_id USING ERRCODE = 'serialization_failure';
END;
$$;
