//! Commits on their way from one repository into another: as a pack, checked on arrival.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::Path;

use super::error::{At, TreeError};
use crate::git::{Call, Git};

/// Copies commits with all they need from one repository into another, checked on arrival.
///
/// `from` is read under a configuration of ours. Everything is recomputed and checked by the reader
/// (`--strict`): names, formats, that nothing is missing. `into` is a call of git where they go.
pub(crate) fn transfer(
    git: &Git,
    from: &Path,
    wanted: &[&str],
    known: &[&str],
    into: Call<'_>,
) -> Result<(), TreeError> {
    let path = from.join(format!("transfer-{:?}.pack", std::thread::current().id()));
    let pack = File::options()
        .create(true)
        .truncate(true)
        .read(true)
        .write(true)
        .open(&path)
        .at("making", &path)?;
    // It is only a way through; without a name it goes with its last user.
    std::fs::remove_file(&path).at("removing", &path)?;
    let call = git.call("collect the session's commits").repo(from);
    pack_into(call, wanted, known, &pack, &path)?;
    unpack_from(into, pack, &path)
}

/// Below so many objects they are stored one by one, as git itself does it.
const ONE_BY_ONE: u32 = 100;

/// Writes a pack of what `wanted` needs beyond `known`.
pub(crate) fn pack_into(
    call: Call<'_>,
    wanted: &[&str],
    known: &[&str],
    pack: &File,
    path: &Path,
) -> Result<(), TreeError> {
    let mut input = Vec::new();
    for id in wanted {
        let _ = writeln!(input, "{id}");
    }
    for id in known {
        let _ = writeln!(input, "^{id}");
    }
    let out = pack.try_clone().at("opening", path)?;
    call.args(["pack-objects", "--revs", "--stdout", "-q"]).input(input).output_file(out).run()?;
    Ok(())
}

/// A call that takes commits into a repository.
pub(crate) fn taking<'a>(git: &'a Git, to: &Path) -> Call<'a> {
    git.call(format!("take the session's commits into {}", to.display()))
}

/// Reads a pack into the repository of a call.
pub(crate) fn unpack_from(into: Call<'_>, mut pack: File, path: &Path) -> Result<(), TreeError> {
    let mut header = [0; 12];
    pack.seek(SeekFrom::Start(0)).at("reading", path)?;
    pack.read_exact(&mut header).at("reading", path)?;
    pack.seek(SeekFrom::Start(0)).at("reading", path)?;
    let count = u32::from_be_bytes([header[8], header[9], header[10], header[11]]);
    let call = into.finishes().input_file(pack);
    match count {
        0 => return Ok(()),
        1..ONE_BY_ONE => call.args(["unpack-objects", "-q", "--strict"]).run()?,
        _ => call.args(["index-pack", "--stdin", "--strict"]).run()?,
    };
    Ok(())
}
