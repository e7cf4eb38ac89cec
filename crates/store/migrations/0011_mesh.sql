-- The mesh. The shared state: `expires_at` is looked at by every read, and the sweep finds what
-- is past it by the index.
CREATE TABLE board (
  n INTEGER NOT NULL PRIMARY KEY,
  colony BLOB NOT NULL,
  key TEXT NOT NULL,
  value TEXT NOT NULL,
  version INTEGER NOT NULL,
  written_by TEXT NOT NULL,
  workflow TEXT,
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  ttl INTEGER,
  expires_at INTEGER,
  effect BLOB
) STRICT;
CREATE UNIQUE INDEX board_by_key ON board (colony, key);
CREATE INDEX board_by_expiry ON board (expires_at) WHERE expires_at IS NOT NULL;

-- Letters on their way, and dead ones. `place` is the order in which they came and is never used
-- again; `due` is the next moment at which time alone kills the letter.
CREATE TABLE letters (
  place INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
  id BLOB NOT NULL,
  colony BLOB NOT NULL,
  recipient BLOB NOT NULL,
  sender TEXT NOT NULL,
  topic TEXT,
  kind TEXT NOT NULL,
  payload TEXT NOT NULL,
  workflow TEXT,
  reply_to TEXT,
  priority TEXT NOT NULL,
  sent_at INTEGER NOT NULL,
  expires_at INTEGER,
  attempts INTEGER NOT NULL,
  visible_at INTEGER NOT NULL,
  holder BLOB,
  session BLOB,
  is_dead INTEGER NOT NULL,
  why_dead TEXT,
  due INTEGER
) STRICT;
CREATE UNIQUE INDEX letters_by_id ON letters (recipient, id);
CREATE INDEX letters_by_mailbox ON letters (recipient, is_dead, place);
CREATE INDEX letters_by_due ON letters (due) WHERE due IS NOT NULL;

CREATE TABLE subscriptions (
  id BLOB NOT NULL PRIMARY KEY,
  colony BLOB NOT NULL,
  agent BLOB NOT NULL,
  pattern TEXT NOT NULL,
  line TEXT NOT NULL,
  created_at INTEGER NOT NULL,
  created_by TEXT NOT NULL,
  UNIQUE (agent, pattern)
) STRICT;

CREATE TABLE registrations (
  agent BLOB NOT NULL PRIMARY KEY,
  colony BLOB NOT NULL,
  capabilities TEXT NOT NULL,
  registered_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
