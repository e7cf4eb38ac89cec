//! The one place that prints. Results go to stdout, everything else to stderr.
#![expect(clippy::print_stdout, reason = "this is the module that may")]

/// Prints a result as it is.
pub fn out(text: &str) {
    print!("{text}");
}

/// Prints one line about what is going on.
pub fn note(line: &str) {
    eprintln!("{line}");
}
