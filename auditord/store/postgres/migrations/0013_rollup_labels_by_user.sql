-- Lists and sums of a user's records look up the labels with the name.
CREATE INDEX rollup_labels_by_user ON auditord.rollup_labels (user_name);
