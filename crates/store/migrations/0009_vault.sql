-- Secrets, each version encrypted under a data key of its own; who may use what; services beyond
-- those that are built in.

CREATE TABLE vault_secrets (
  name TEXT NOT NULL,
  version INTEGER NOT NULL,
  -- Id of the master key that `wrapped` is under.
  master TEXT NOT NULL,
  wrapped BLOB NOT NULL,
  body BLOB NOT NULL,
  created_at INTEGER NOT NULL,
  created_by TEXT NOT NULL,
  PRIMARY KEY (name, version)
) STRICT, WITHOUT ROWID;

-- How often each was used; of a secret that is gone it stays.
CREATE TABLE vault_uses (
  name TEXT NOT NULL PRIMARY KEY,
  uses INTEGER NOT NULL,
  last_used_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE vault_grants (
  agent TEXT NOT NULL,
  kind TEXT NOT NULL,
  object TEXT NOT NULL,
  created_at INTEGER NOT NULL,
  created_by TEXT NOT NULL,
  PRIMARY KEY (agent, kind, object)
) STRICT, WITHOUT ROWID;

CREATE TABLE vault_services (
  name TEXT NOT NULL PRIMARY KEY,
  service TEXT NOT NULL
) STRICT, WITHOUT ROWID;
