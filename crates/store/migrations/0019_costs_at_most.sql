-- Calls whose real cost nobody knows: the most that they can have cost is counted.
ALTER TABLE model_calls ADD COLUMN at_most INTEGER NOT NULL DEFAULT 0;
ALTER TABLE spend ADD COLUMN at_most INTEGER NOT NULL DEFAULT 0;
