//! Processes that outlive their supervisor: terminals, process trees, output on disk, adoption.
