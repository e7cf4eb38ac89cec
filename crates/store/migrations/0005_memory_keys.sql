-- A key is taken for as long as its item was to live, whether or not it lived so long; without a
-- time limit for good.
ALTER TABLE memory_keys ADD COLUMN expires_at INTEGER;
UPDATE memory_keys SET expires_at = (SELECT expires_at FROM memory_items WHERE id = item);
