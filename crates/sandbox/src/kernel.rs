//! Features of the running kernel that can only be derived from its version.

/// Whether the limit of processes also applies to root; see `init::confined::bound_processes`.
pub(crate) fn has_namespaced_pid_max() -> bool {
    running().is_some_and(|version| version >= (6, 14))
}

fn running() -> Option<(u32, u32)> {
    parse(rustix::system::uname().release().to_str().ok()?)
}

/// Major and minor number of a release such as `6.1.0-13-amd64`.
fn parse(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_parse_and_compare_as_numbers() {
        assert_eq!(parse("6.1.0-13-amd64"), Some((6, 1)));
        assert_eq!(parse("6.18.44-x"), Some((6, 18)));
        assert_eq!(parse("6.14"), Some((6, 14)));
        assert!(parse("6.9.0") < parse("6.14.0"));
        assert_eq!(parse("nonsense"), None);
    }
}
