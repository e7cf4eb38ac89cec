-- Who wrote an agent's spec last, as JSON. Not known of agents that were written before.
ALTER TABLE agents ADD COLUMN author TEXT;
ALTER TABLE agent_versions ADD COLUMN author TEXT;
