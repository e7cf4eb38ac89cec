//! The changes of a run: a unified diff in two columns.

use overmind_api::RoomWork;

use crate::clean;

/// Largest diff that is shown in columns, in bytes of its text and in rows.
const MOST: usize = 5 << 20;
const ROWS: usize = 20_000;
/// Longest line that is shown in full, in characters.
const LINE: usize = 2_000;
/// Rows above which a file is collapsed at first.
const LARGE: usize = 400;

/// The page `/runs/{id}/changes`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// A summary such as `3 files, +120 −14, 2 commits`.
    pub summary: String,
    pub branch: String,
    pub base: String,
    pub files: Vec<ChangedFile>,
    /// Why the diff is incomplete, and where the rest can be seen.
    pub cut: Option<String>,
    /// Files that other programs run automatically after a merge: the exact path, the path for
    /// people, and the program that runs it.
    pub runs_later: Vec<(String, String, String)>,
}

/// A file of a diff.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChangedFile {
    /// The path, with special characters escaped. For a moved file, `→` separates old and new path.
    pub path: String,
    /// `new`, `deleted`, `moved`, `mode`, `binary`; empty for a plain change.
    pub note: &'static str,
    pub added: usize,
    pub removed: usize,
    pub rows: Vec<Row>,
}

impl ChangedFile {
    /// Returns whether the file is collapsed at first.
    pub fn large(&self) -> bool {
        self.rows.len() > LARGE
    }
}

/// A row of two columns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Row {
    /// The header of a hunk, as git writes it.
    Hunk(String),
    /// A line of the old file next to one of the new file, each with its number.
    Pair(Option<Side>, Option<Side>),
}

/// One side of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Side {
    pub number: u32,
    pub text: String,
    /// Whether the line differs from the other file.
    pub changed: bool,
}

impl Side {
    /// Returns the class of its cell: `add` or `del` if the line changed.
    pub fn class(&self, of: &'static str) -> &'static str {
        if self.changed { of } else { "" }
    }
}

impl Changes {
    pub fn new(work: &RoomWork) -> Self {
        let count = |n: u64, one: &str, many: &str| match n {
            1 => format!("1 {one}"),
            n => format!("{n} {many}"),
        };
        let mut summary = format!(
            "{}, +{} −{}",
            count(work.files.into(), "file", "files"),
            work.insertions,
            work.deletions
        );
        if work.commits > 0 {
            summary.push_str(&format!(", {}", count(work.commits.into(), "commit", "commits")));
        }
        let text = head(&work.diff, MOST);
        let (files, whole) = files(text);
        let cut = work.truncated || text.len() < work.diff.len() || !whole;
        let line = |text: &str| clean::line(text).into_owned();
        let branch = line(work.branch.as_deref().unwrap_or_default());
        let see = match branch.as_str() {
            "" => "look at it in the worktree".to_owned(),
            branch => format!(
                "`git diff {}...{branch}` shows all",
                line(work.base.as_deref().unwrap_or("HEAD"))
            ),
        };
        Self {
            summary,
            base: short(work.base.as_deref().unwrap_or_default()),
            files,
            cut: cut.then(|| format!("This is the beginning of a large diff; {see}.")),
            runs_later: work
                .runs_later
                .iter()
                .map(|one| (one.path.clone(), line(&one.path), line(&one.why)))
                .collect(),
            branch,
        }
    }
}

/// Returns a name unchanged, and a commit's hash shortened.
fn short(base: &str) -> String {
    let hash = base.len() >= 40 && base.bytes().all(|byte| byte.is_ascii_hexdigit());
    let text = clean::line(base);
    if hash { text.chars().take(12).collect() } else { text.into_owned() }
}

/// Returns at most this many bytes, up to the end of a line.
fn head(text: &str, most: usize) -> &str {
    if text.len() <= most {
        return text;
    }
    let end = text.as_bytes().iter().take(most).rposition(|byte| *byte == b'\n').unwrap_or(0);
    text.get(..end).unwrap_or_default()
}

/// Returns the files of a unified git diff, and whether all rows were included.
fn files(text: &str) -> (Vec<ChangedFile>, bool) {
    let mut files: Vec<ChangedFile> = Vec::new();
    let mut hunk = Hunk::default();
    let mut rows = 0;
    for line in text.split('\n') {
        if let (Some(kind), true, Some(file)) = (hunk.kind(line), hunk.left(), files.last_mut()) {
            hunk.take(kind, line.get(1..).unwrap_or_default(), file);
            if rows + hunk.rows + hunk.gone.len().max(hunk.come.len()) >= ROWS {
                hunk.end(file);
                return (files, false);
            }
            continue;
        }
        if let Some(file) = files.last_mut() {
            rows += hunk.end(file);
        }
        if let Some(names) = line.strip_prefix("diff --git ") {
            files.push(ChangedFile { path: both(names), ..ChangedFile::default() });
        }
        let Some(file) = files.last_mut() else { continue };
        if let Some(found) = Hunk::begin(line) {
            hunk = found;
            file.rows.push(Row::Hunk(clean::cut(&clean::line(line), 200).into_owned()));
        } else if line.starts_with("new file") {
            file.note = "new";
        } else if line.starts_with("deleted file") {
            file.note = "deleted";
        } else if line.starts_with("rename from ") {
            file.note = "moved";
        } else if line.starts_with("old mode") {
            file.note = "mode";
        } else if line.starts_with("Binary files ") || line == "GIT binary patch" {
            file.note = "binary";
        } else if let Some(name) = line.strip_prefix("+++ ").filter(|name| *name != "/dev/null") {
            file.path = renamed(&file.path, &plain(name));
        } else if let Some(name) = line.strip_prefix("--- ").filter(|_| file.note == "deleted") {
            file.path = plain(name);
        }
    }
    if let Some(file) = files.last_mut() {
        hunk.end(file);
    }
    (files, true)
}

/// Returns the name after `diff --git`. Its two names are equal, except for a moved file.
fn both(names: &str) -> String {
    let middle = names.len() / 2;
    match (names.get(..middle), names.get(middle + 1..)) {
        (Some(old), Some(new)) if plain(old) == plain(new) => plain(new),
        _ => match names.split_once(" b/") {
            Some((old, new)) => format!("{} → {}", plain(old), clean::line(new)),
            None => clean::line(names).into_owned(),
        },
    }
}

/// Returns both names of a moved file.
fn renamed(known: &str, new: &str) -> String {
    if known.contains(" → ") { known.to_owned() } else { new.to_owned() }
}

/// Returns a name without `a/` or `b/`, with git's quoting removed.
fn plain(name: &str) -> String {
    let name = name.strip_suffix('\t').unwrap_or(name);
    let bare = name.strip_prefix('"').and_then(|name| name.strip_suffix('"')).unwrap_or(name);
    let bare = bare.strip_prefix("a/").or_else(|| bare.strip_prefix("b/")).unwrap_or(bare);
    clean::cut(&clean::line(bare), 400).into_owned()
}

#[derive(Clone, Copy)]
enum Kind {
    Same,
    Old,
    New,
    Note,
}

/// The state of a hunk: how many lines follow, and the changed lines that have no counterpart yet.
#[derive(Default)]
struct Hunk {
    old: u32,
    new: u32,
    old_left: u32,
    new_left: u32,
    gone: Vec<Side>,
    come: Vec<Side>,
    rows: usize,
}

impl Hunk {
    /// Parses `@@ -1,3 +1,4 @@ fn main()`.
    fn begin(line: &str) -> Option<Self> {
        let (ranges, _) = line.strip_prefix("@@ -")?.split_once(" @@")?;
        let (old, new) = ranges.split_once(" +")?;
        let range = |text: &str| {
            let (start, count) = text.split_once(',').unwrap_or((text, "1"));
            Some((start.parse::<u32>().ok()?, count.parse::<u32>().ok()?))
        };
        let ((old, old_left), (new, new_left)) = (range(old)?, range(new)?);
        Some(Self { old, new, old_left, new_left, ..Self::default() })
    }

    fn left(&self) -> bool {
        self.old_left > 0 || self.new_left > 0
    }

    fn kind(&self, line: &str) -> Option<Kind> {
        match line.as_bytes().first() {
            Some(b' ') => Some(Kind::Same),
            Some(b'-') if self.old_left > 0 => Some(Kind::Old),
            Some(b'+') if self.new_left > 0 => Some(Kind::New),
            Some(b'\\') => Some(Kind::Note),
            _ => None,
        }
    }

    fn take(&mut self, kind: Kind, text: &str, file: &mut ChangedFile) {
        let text = text.strip_suffix('\r').unwrap_or(text);
        let text = clean::cut(&clean::block(text), LINE).into_owned();
        let side = |number: u32, changed: bool| Side { number, text: text.clone(), changed };
        match kind {
            Kind::Same => {
                self.flush(file);
                file.rows.push(Row::Pair(Some(side(self.old, false)), Some(side(self.new, false))));
                self.rows += 1;
            }
            Kind::Old => {
                self.gone.push(side(self.old, true));
                file.removed += 1;
            }
            Kind::New => {
                self.come.push(side(self.new, true));
                file.added += 1;
            }
            Kind::Note => {}
        }
        if matches!(kind, Kind::Same | Kind::Old) {
            (self.old, self.old_left) =
                (self.old.saturating_add(1), self.old_left.saturating_sub(1));
        }
        if matches!(kind, Kind::Same | Kind::New) {
            (self.new, self.new_left) =
                (self.new.saturating_add(1), self.new_left.saturating_sub(1));
        }
    }

    /// Adds the waiting deleted and added lines side by side.
    fn flush(&mut self, file: &mut ChangedFile) {
        let (mut gone, mut come) = (
            std::mem::take(&mut self.gone).into_iter(),
            std::mem::take(&mut self.come).into_iter(),
        );
        loop {
            match (gone.next(), come.next()) {
                (None, None) => return,
                (old, new) => {
                    file.rows.push(Row::Pair(old, new));
                    self.rows += 1;
                }
            }
        }
    }

    /// Ends the hunk. Returns its number of rows.
    fn end(&mut self, file: &mut ChangedFile) -> usize {
        self.flush(file);
        std::mem::take(self).rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(diff: &str) -> RoomWork {
        let (branch, base) = (Some("overmind/x".to_owned()), Some("main".to_owned()));
        RoomWork {
            branch,
            base,
            files: 1,
            insertions: 2,
            deletions: 1,
            diff: diff.into(),
            ..RoomWork::default()
        }
    }

    const DIFF: &str = "diff --git a/src/a.rs b/src/a.rs\nindex 1..2 100644\n--- a/src/a.rs\n+++ b/src/a.rs\n@@ -1,3 +1,4 @@ fn main()\n one\n-two\n+2\n+2b\n three\n\\ No newline at end of file\ndiff --git a/new b/new\nnew file mode 100644\n--- /dev/null\n+++ b/new\n@@ -0,0 +1 @@\n+--- not a header\ndiff --git a/x b/y\nrename from x\nrename to y\ndiff --git a/p.png b/p.png\nBinary files a/p.png and b/p.png differ\n";

    #[test]
    fn removed_lines_are_shown_beside_added_ones() {
        let changes = Changes::new(&work(DIFF));
        assert_eq!(changes.summary, "1 file, +2 −1");
        let told: Vec<_> = changes
            .files
            .iter()
            .map(|one| (one.path.as_str(), one.note, one.added, one.removed))
            .collect();
        let want = [
            ("src/a.rs", "", 2, 1),
            ("new", "new", 1, 0),
            ("x → y", "moved", 0, 0),
            ("p.png", "binary", 0, 0),
        ];
        assert_eq!(told, want);
        let side = |side: &Option<Side>| {
            side.as_ref().map_or(String::from("·"), |one| {
                format!("{}{}{}", one.number, if one.changed { "!" } else { " " }, one.text)
            })
        };
        let rows: Vec<_> = changes.files[0]
            .rows
            .iter()
            .map(|row| match row {
                Row::Hunk(text) => text.clone(),
                Row::Pair(old, new) => format!("{} | {}", side(old), side(new)),
            })
            .collect();
        let want = [
            "@@ -1,3 +1,4 @@ fn main()",
            "1 one | 1 one",
            "2!two | 2!2",
            "· | 3!2b",
            "3 three | 4 three",
        ];
        assert_eq!(rows, want);
        assert_eq!(changes.cut, None);
        let Row::Pair(None, Some(line)) = &changes.files[1].rows[1] else { panic!("{changes:?}") };
        assert_eq!(line.text, "--- not a header");
    }

    #[test]
    fn a_large_diff_is_truncated_with_a_note_and_escaped() {
        let mut text = String::from("diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -0,0 +1,90000 @@\n");
        text.push_str(&"+\u{1b}]0;owned\u{7}\n".repeat(90_000));
        let changes = Changes::new(&work(&text));
        let cut = changes.cut.unwrap();
        assert!(cut.contains("git diff main...overmind/x"), "{cut}");
        let shown = format!("{:?}", changes.files);
        assert!(!shown.contains('\u{1b}') && !shown.contains('\u{7}'));
        assert!(changes.files[0].rows.len() <= ROWS + 1, "{}", changes.files[0].rows.len());
        let odd =
            Changes::new(&work("@@ -1 +1 @@\n+x\n\ndiff --git\n@@ -9 +999999999999 @@\n-x\n"));
        assert!(odd.files.len() <= 1);
        assert_eq!(Changes::new(&work("")).files, []);
    }
}
