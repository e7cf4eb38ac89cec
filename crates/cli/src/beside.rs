//! The text that `ps` prints besides its rows: names of projects, and causes of failing model calls.

use std::collections::{HashMap, HashSet};

use crate::context::Context;
use crate::output::clean;

/// Causes of model failures that `ps` lists, and the number of runs that it names for each.
const CAUSES: usize = 5;
const NAMED: usize = 5;

/// The names of projects in a list: the ends of their paths, as far as these differ.
pub fn projects<'a>(all: impl IntoIterator<Item = &'a str>) -> HashMap<&'a str, String> {
    let all: HashSet<&str> = all.into_iter().collect();
    let end = |path: &str, parts: usize| -> String {
        let parts: Vec<&str> =
            path.rsplit('/').filter(|part| !part.is_empty()).take(parts).collect();
        parts.into_iter().rev().collect::<Vec<_>>().join("/")
    };
    let most = |path: &str| path.split('/').count();
    let own = |path: &str| {
        let mut lengths = 1..most(path);
        let alone = |parts: &usize| {
            all.iter().filter(|other| end(other, *parts) == end(path, *parts)).count() == 1
        };
        let name = lengths.find(alone).map(|parts| end(path, parts));
        name.filter(|name| !name.is_empty()).unwrap_or_else(|| path.to_owned())
    };
    all.iter().map(|path| (*path, own(path))).collect()
}

/// Why the models of listed runs are not reached: a line for each cause.
pub fn troubles<'a>(cx: &Context, runs: impl Iterator<Item = (&'a str, &'a Option<String>)>) {
    let mut causes: Vec<(&str, Vec<&str>)> = Vec::new();
    for (name, why) in runs {
        let Some(why) = why else { continue };
        match causes.iter_mut().find(|(known, _)| known == why) {
            Some((_, names)) => names.push(name),
            None => causes.push((why, vec![name])),
        }
    }
    for (why, names) in causes.iter().take(CAUSES) {
        let more = match names.len().saturating_sub(NAMED) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let names = names.iter().take(NAMED).copied().collect::<Vec<_>>().join(", ");
        let why = clean::line(why);
        cx.out.note(&format!("{names}{more}: model calls fail: {}", clean::cut(&why, 400)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn projects_are_distinguished_by_the_ends_of_their_paths() {
        let all = ["/home/me/shop", "/home/you/shop", "/srv/site", "/"];
        let named = projects(all);
        let named: Vec<&str> = all.iter().map(|path| named[path].as_str()).collect();
        assert_eq!(named, ["me/shop", "you/shop", "site", "/"]);
        assert_eq!(projects(["/a/shop", "/a/shop"]).len(), 1);
        let below = projects(["/shop", "/home/shop"]);
        assert_eq!((below["/shop"].as_str(), below["/home/shop"].as_str()), ("/shop", "home/shop"));
    }
}
