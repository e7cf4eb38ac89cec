-- What people call a session, and the session that started it. No two of a colony that have not
-- ended share a name: the writer sees to it, for it is alone (`Guard::NameFree`).
ALTER TABLE sessions ADD COLUMN name TEXT NOT NULL DEFAULT '';
ALTER TABLE sessions ADD COLUMN parent BLOB;
UPDATE sessions SET name = 'run-' || lower(hex(substr(id, 13)));
CREATE INDEX sessions_by_name ON sessions (name, id);
CREATE INDEX sessions_by_parent ON sessions (parent, id) WHERE parent IS NOT NULL;
