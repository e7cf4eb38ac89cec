//! `sed` and `awk`: small languages on the command line, mostly harmless.

use overmind_core::gate::TouchKind;

use super::expand::{HOLE, is_open, shown};
use super::run::{Call, is_option};

pub(super) fn sed(call: &mut Call<'_, '_>) {
    let args = call.args();
    let mut scripts = Vec::new();
    let mut files = Vec::new();
    let mut in_place = false;
    let mut given = false;
    let mut n = 0;
    while let Some(arg) = args.get(n) {
        n += 1;
        match arg.as_str() {
            "-e" | "--expression" => {
                scripts.push(args.get(n).cloned().unwrap_or_default());
                given = true;
                n += 1;
            }
            "-n" | "-E" | "-r" | "-s" | "-z" | "-u" | "-nE" | "-En" | "-nr" | "-rn" | "--quiet"
            | "--silent" | "--regexp-extended" | "--null-data" | "--separate" | "--posix"
            | "--sandbox" | "--debug" => {}
            "-l" | "--line-length" => n += 1,
            "--" => {
                files.extend(args[n..].iter().cloned());
                n = args.len();
            }
            arg if arg.starts_with("-i") || arg.starts_with("--in-place") => in_place = true,
            arg if arg.starts_with("--expression=") => {
                scripts.push(arg["--expression=".len()..].to_owned());
                given = true;
            }
            "-Ei" | "-ri" | "-ni" | "-zi" => in_place = true,
            "-ne" | "-Ee" | "-re" | "-nEe" => {
                scripts.push(args.get(n).cloned().unwrap_or_default());
                given = true;
                n += 1;
            }
            arg if is_option(arg) => {
                call.unknown("a script that is in a file, or an option that is not known")
            }
            arg if !given && scripts.is_empty() => scripts.push(arg.to_owned()),
            arg => files.push(arg.to_owned()),
        }
    }
    for script in &scripts {
        if is_open(script) || !harmless_sed(script) {
            call.act.touch(TouchKind::Code, shown(script));
            call.unknown("a script of `sed` that may run programs or write files");
        }
    }
    if files.iter().any(|file| file.contains(super::expand::SPLIT) || file.starts_with(HOLE)) {
        call.unknown("an argument that may be an option is known only at run time");
    }
    for file in files {
        call.path(if in_place { TouchKind::Write } else { TouchKind::Read }, &file);
    }
}

/// Whether a script only edits: it has no `e`, `r`, `w` and nothing that is not understood.
fn harmless_sed(script: &str) -> bool {
    let mut chars = script.chars().peekable();
    loop {
        while chars.next_if(|c| matches!(c, ' ' | '\t' | '\n' | ';' | '}' | '{')).is_some() {}
        // Addresses: numbers, `$`, `/…/`, joined by commas.
        loop {
            match chars.peek() {
                Some('/') => {
                    chars.next();
                    if !skip_to(&mut chars, '/') {
                        return false;
                    }
                    while chars.next_if(|c| matches!(c, 'I' | 'M')).is_some() {}
                }
                Some('\\') => {
                    chars.next();
                    let Some(delimiter) = chars.next() else { return false };
                    if !skip_to(&mut chars, delimiter) {
                        return false;
                    }
                }
                Some(c) if c.is_ascii_digit() || matches!(c, '$' | ',' | '+' | '~' | '!' | ' ') => {
                    chars.next();
                }
                _ => break,
            }
        }
        match chars.next() {
            None => return true,
            Some(
                'p' | 'd' | 'q' | '=' | 'n' | 'N' | 'g' | 'G' | 'h' | 'H' | 'x' | 'D' | 'P' | 'l'
                | 'Q' | 'z' | 'F',
            ) => while chars.next_if(char::is_ascii_digit).is_some() {},
            Some('{' | '}') => {}
            Some('b' | 't' | 'T' | ':') => {
                // Implementations end a label differently: the earliest possible end is used.
                while chars.next_if(|c| !matches!(c, ';' | '\n' | '}')).is_some() {}
            }
            Some('#' | 'a' | 'i' | 'c') => {
                // A text or label reaches to the end of the line. Continued lines are not followed.
                let mut last = ' ';
                for c in chars.by_ref() {
                    if c == '\n' {
                        break;
                    }
                    last = c;
                }
                if last == '\\' {
                    return false;
                }
            }
            Some(command @ ('s' | 'y')) => {
                let Some(delimiter) =
                    chars.next().filter(|c| !c.is_alphanumeric() && *c != '\\' && *c != '\n')
                else {
                    return false;
                };
                if !skip_to(&mut chars, delimiter) || !skip_to(&mut chars, delimiter) {
                    return false;
                }
                while command == 's'
                    && chars
                        .next_if(|c| {
                            c.is_ascii_digit() || matches!(c, 'g' | 'p' | 'i' | 'I' | 'm' | 'M')
                        })
                        .is_some()
                {}
            }
            Some(_) => return false,
        }
        while chars.next_if(|c| matches!(c, ' ' | '\t')).is_some() {}
        if !matches!(chars.peek(), None | Some(';' | '\n' | '}' | '#'))
            && !matches!(chars.peek(), Some('{'))
        {
            // After `{` a command may follow at once; after anything else it may not.
            let next = chars.peek().copied();
            if next
                .is_some_and(|c| c != '/' && !c.is_ascii_digit() && c != '$' && !c.is_alphabetic())
            {
                return false;
            }
        }
    }
}

/// Skips to the position after the next `delimiter` that is not escaped. Implementations differ on
/// whether a delimiter in a set ends the pattern, so sets that could contain one are refused.
fn skip_to(chars: &mut std::iter::Peekable<std::str::Chars<'_>>, delimiter: char) -> bool {
    let (mut opened, mut closed) = (0_u32, 0_u32);
    let mut last = ' ';
    while let Some(c) = chars.next() {
        match c {
            '\\' => {
                chars.next();
            }
            c if c == delimiter => return opened == closed,
            '[' => opened += 1,
            // `[]…]` and `[^]…]` contain the bracket.
            ']' if matches!(last, '[' | '^') => return false,
            ']' => closed += 1,
            _ => {}
        }
        last = c;
    }
    false
}

pub(super) fn awk(call: &mut Call<'_, '_>) {
    let args = call.args();
    let mut program = None;
    if args.iter().any(|arg| arg.contains(super::expand::SPLIT)) {
        call.unknown("an argument that may be an option is known only at run time");
    }
    let mut n = 0;
    while let Some(arg) = args.get(n) {
        n += 1;
        match arg.as_str() {
            "-F" | "-v" | "--field-separator" | "--assign" => n += 1,
            "--" => {}
            arg if arg.starts_with("-F") || (arg.starts_with("-v") && arg.contains('=')) => {}
            arg if is_option(arg) => {
                call.unknown("a program that is in a file, or an option that is not known")
            }
            arg if program.is_none() => program = Some(arg.to_owned()),
            // `name=value` is an assignment, anything else a file.
            arg if arg.split_once('=').is_some_and(|(name, _)| super::lex::is_name(name)) => {}
            arg => call.path(TouchKind::Read, arg),
        }
    }
    match program {
        Some(text) if !is_open(&text) && harmless_awk(&text) => {}
        Some(text) => {
            call.act.touch(TouchKind::Code, shown(&text));
            call.unknown("a program of `awk` that may run programs or write files");
        }
        None => call.unknown("a program of `awk` that is not named"),
    }
}

fn harmless_awk(program: &str) -> bool {
    let text = program.replace("||", "  ");
    if text.contains("system")
        || text.contains('|')
        || text.contains("getline")
        || text.contains('@')
        // These decide which files are read next.
        || text.contains("ARGV")
        || text.contains("ARGC")
    {
        return false;
    }
    // In `print … > "file"` a `>` after a print writes. In `$1 > 5` before one it is a comparison.
    let mut printing = false;
    let mut word = String::new();
    for c in text.chars() {
        if c.is_alphanumeric() || c == '_' {
            word.push(c);
            continue;
        }
        printing |= matches!(word.as_str(), "print" | "printf");
        word.clear();
        match c {
            '>' if printing => return false,
            _ => {}
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edit_scripts_are_distinguished_from_other_scripts() {
        for script in [
            "s/a/b/",
            "s|a/b|c|g",
            "10,20p",
            "/x/d",
            "$d",
            "1d;$d",
            "/a/,/b/p",
            "s/a/b/; s/c/d/g",
            "y/ab/cd/",
            "/x/{s/a/b/;p}",
        ] {
            assert!(harmless_sed(script), "{script}");
        }
        for script in [
            "1e id",
            "e",
            "s/a/id/e",
            "s/a/b/w /tmp/x",
            "w f",
            "r /etc/passwd",
            "1!e id",
            "t;e id",
            "b;e id",
            ":a;e id",
            "s/[]/]/p;s/e;s/x/y/#/z/",
            "s/[[:x:]/]/p/e",
            "s/x/y/;e id",
            "/x/e",
            "s/a/b/ge",
            "s[a[id[e",
            "{e id\n}",
            "s/[/]/;e;/",
        ] {
            assert!(!harmless_sed(script), "{script}");
        }
        for program in
            ["{print $1}", "$3 > 10 {print $0}", "NR==1 || NR==2", "{s+=$1} END {print s}"]
        {
            assert!(harmless_awk(program), "{program}");
        }
        for program in [
            "BEGIN{system(\"id\")}",
            "{print | \"sh\"}",
            "{\"id\"|getline x}",
            "{print > \"/etc/x\"}",
            "{print /;/ > \"f\"}",
            "@load \"x\"",
        ] {
            assert!(!harmless_awk(program), "{program}");
        }
    }
}
