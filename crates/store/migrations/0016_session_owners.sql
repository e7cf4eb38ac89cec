-- What sessions were started for, and by what they are found. Neither ever changes.
ALTER TABLE sessions ADD COLUMN owner BLOB;
ALTER TABLE sessions ADD COLUMN labels TEXT NOT NULL DEFAULT '{}';
CREATE INDEX sessions_by_owner ON sessions (owner, id) WHERE owner IS NOT NULL;

CREATE TABLE session_labels (
  label TEXT NOT NULL,
  value TEXT NOT NULL,
  session BLOB NOT NULL,
  PRIMARY KEY (label, value, session)
) STRICT, WITHOUT ROWID;
