//! The extensions of PostgreSQL that a project's file may request.
//!
//! The server creates them with all its rights, but commands in sandboxes use the database. The
//! database's server opens files and connections for an extension, outside of every sandbox:
//! `dblink` reaches each port of the host's loopback.

/// Extensions that only compute, and do not leave the database.
const CONTAINED: &[&str] = &[
    "address_standardizer",
    "bloom",
    "btree_gin",
    "btree_gist",
    "citext",
    "cube",
    "dict_int",
    "earthdistance",
    "fuzzystrmatch",
    "hstore",
    "intarray",
    "isn",
    "ltree",
    "pg_stat_statements",
    "pg_trgm",
    "pgcrypto",
    "plpgsql",
    "postgis",
    "postgis_topology",
    "seg",
    "tablefunc",
    "tcn",
    "tsm_system_rows",
    "tsm_system_time",
    "unaccent",
    "uuid-ossp",
    "vector",
];

const CONNECTS: &str = "opens connections from the database's server";
const OPENS: &str = "opens files of the database's server";
const RUNS: &str = "runs programs on the database's server";

/// Extensions that allow an escape from a sandbox.
const LEADING_OUT: &[(&str, &str)] = &[
    ("adminpack", OPENS),
    ("dblink", CONNECTS),
    ("file_fdw", OPENS),
    ("http", CONNECTS),
    ("mysql_fdw", CONNECTS),
    ("oracle_fdw", CONNECTS),
    ("pg_background", RUNS),
    ("pg_cron", RUNS),
    ("pg_net", CONNECTS),
    ("pgagent", RUNS),
    ("pljava", RUNS),
    ("pljavau", RUNS),
    ("plperlu", RUNS),
    ("plpython2u", RUNS),
    ("plpython3u", RUNS),
    ("plpythonu", RUNS),
    ("plr", RUNS),
    ("plsh", RUNS),
    ("pltclu", RUNS),
    ("postgis_raster", OPENS),
    ("postgres_fdw", CONNECTS),
    ("redis_fdw", CONNECTS),
    ("tds_fdw", CONNECTS),
];

/// How an extension allows an escape from a sandbox; `None` if that is not known.
pub(super) fn leads_out(name: &str) -> Option<&'static str> {
    LEADING_OUT.iter().find(|(known, _)| *known == name).map(|(_, how)| *how)
}

/// Whether an extension does not leave the database.
pub(super) fn is_contained(name: &str) -> bool {
    CONTAINED.contains(&name)
}
