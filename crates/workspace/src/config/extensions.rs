//! Which extensions of PostgreSQL a project's file may order, and what their order says.
//!
//! The server creates them with all its rights, and a database is used by commands in sandboxes. What an
//! extension opens or connects to, the database's server does, outside of every sandbox: `dblink` reaches
//! each port of the host's loopback.

/// Those that only compute, and keep to the database.
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

/// Those that are ways out of a sandbox.
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

/// How an extension leads out of a sandbox; `None`: it is not known to.
pub(super) fn leads_out(name: &str) -> Option<&'static str> {
    LEADING_OUT.iter().find(|(known, _)| *known == name).map(|(_, how)| *how)
}

/// Whether an extension keeps to the database.
pub(super) fn is_contained(name: &str) -> bool {
    CONTAINED.contains(&name)
}
