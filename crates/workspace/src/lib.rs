//! What a session works in and must give back: worktree, ports, databases, services.
