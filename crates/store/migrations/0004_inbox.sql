-- What waits, or waited, for a human: one open row for each session that waits. `session` and
-- `agent` are NULL for what no session asks. `changed` is the global number of the last event of
-- the commit that changed the row last.
CREATE TABLE inbox (
  id BLOB NOT NULL PRIMARY KEY,
  colony BLOB NOT NULL,
  session BLOB,
  agent BLOB,
  agent_name TEXT NOT NULL,
  epoch INTEGER NOT NULL,
  kind TEXT NOT NULL,
  state TEXT NOT NULL,
  title TEXT NOT NULL,
  details TEXT NOT NULL,
  grp TEXT,
  asked_at INTEGER NOT NULL,
  expires_at INTEGER,
  answered_at INTEGER,
  answered_by TEXT,
  answer TEXT,
  changed INTEGER NOT NULL
) STRICT;
CREATE INDEX inbox_by_state ON inbox (state, asked_at, id);
CREATE INDEX inbox_by_colony ON inbox (colony, asked_at, id);
CREATE INDEX inbox_by_session ON inbox (session, asked_at) WHERE session IS NOT NULL;
CREATE INDEX inbox_by_group ON inbox (grp, asked_at) WHERE grp IS NOT NULL;
CREATE INDEX inbox_by_change ON inbox (changed);
