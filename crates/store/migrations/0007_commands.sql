-- What a session's command is doing, where its agent is one: JSON, as the engine writes it.
ALTER TABLE sessions ADD COLUMN command TEXT;
