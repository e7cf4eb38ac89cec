//! Questions at the terminal: those of a followed run; and secrets, which are not shown, and leave
//! the terminal unchanged.

use std::io::{self, IsTerminal as _, Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;

use overmind_api::{
    InboxAnswer, InboxDecision, InboxItem, InboxKind, InboxRaise, InboxState, Run, SecretText,
};
use overmind_client::InboxNews;
use overmind_core::vault::{MAX_SECRET, SecretError};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcsetattr,
};

use crate::args_vault::ValueArgs;
use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::output::clean;
use crate::remote::Remote;
use crate::watch;

/// Open items that are looked through for the one that a run waits for.
const MAX_WAITING: u32 = 1000;

/// Whether a person can be asked.
pub fn possible(cx: &Context) -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal() && cx.out.for_people()
}

/// Shows what a run waits for and sends the answer that the person types. `false` when nobody is
/// there to be asked, or nothing waits any more.
///
/// # Errors
///
/// Returns an error if it could not be asked or answered.
pub async fn in_place(cx: &Context, remote: &Remote, run: &Run) -> Result<bool, Failure> {
    // A run cannot answer questions for people.
    if !possible(cx) || remote.own().is_some() {
        return Ok(false);
    }
    let items = remote.inbox(false, None, None, MAX_WAITING).await?;
    let Some(item) = items.into_iter().find(|item| item.run_id == Some(run.id)) else {
        // Another person answered meanwhile, so the run continues.
        return Ok(!watch::waits(remote.run(&run.id.to_string()).await?.status));
    };
    crate::inbox::tell(cx, &item);
    let answer = tokio::select! {
        biased;
        closed = closed_elsewhere(remote, &item) => {
            cx.out.note(&format!("\n{}", clean::line(&closed)));
            return Ok(true);
        }
        answer = answer_of(&item) => answer?,
    };
    let Some(answer) = answer else { return Ok(false) };
    match remote.inbox_answer(&item.id.to_string(), &answer).await {
        Ok(_) => Ok(true),
        // Somebody was quicker, on another surface.
        Err(failure) if failure.exit == Exit::Conflict => {
            cx.out.note(&failure.message);
            Ok(true)
        }
        Err(failure) => Err(failure),
    }
}

/// The answer of the person; `None` at the end of input.
async fn answer_of(item: &InboxItem) -> Result<Option<InboxAnswer>, Failure> {
    loop {
        let tokens = crate::inbox::amount(item).starts_with("--tokens");
        let question = match item.kind {
            InboxKind::Question => "answer: ",
            InboxKind::Work => "merge, keep or discard: ",
            InboxKind::Approval => "allow it, this once? [y]es, [n]o: ",
            InboxKind::Raise if tokens => "raise the limit by how many tokens? [N], or [n]o: ",
            InboxKind::Raise => "raise the limit by how many US dollars? [N], or [n]o: ",
        };
        let Some(typed) = typed(question).await? else { return Ok(None) };
        let mut raise = None;
        let (decision, message) = match (item.kind, typed.as_str()) {
            (_, "") => continue,
            (InboxKind::Question | InboxKind::Work, _) => (InboxDecision::Answer, Some(typed)),
            (InboxKind::Approval, "y" | "yes") => (InboxDecision::Approve, None),
            (InboxKind::Approval | InboxKind::Raise, "n" | "no") => (InboxDecision::Deny, None),
            (InboxKind::Approval, _) => continue,
            (InboxKind::Raise, typed) => match more(typed, tokens) {
                None => continue,
                more => {
                    raise = more;
                    (InboxDecision::Approve, None)
                }
            },
        };
        return Ok(Some(InboxAnswer { decision, message, reason: None, raise }));
    }
}

/// The amount by which a limit is raised, as it was typed: dollars, or whole tokens.
fn more(typed: &str, tokens: bool) -> Option<InboxRaise> {
    let raise = InboxRaise { usd: None, tokens: None, for_good: false };
    if tokens {
        let tokens = typed.replace(',', "").parse().ok().filter(|tokens: &u64| *tokens > 0)?;
        return Some(InboxRaise { tokens: Some(tokens), ..raise });
    }
    let usd: f64 = typed.trim_start_matches('$').trim().parse().ok()?;
    (usd.is_finite() && usd > 0.0).then_some(InboxRaise { usd: Some(usd), ..raise })
}

/// Waits until an item was answered by another person or withdrawn, and prints a line. If the
/// server cannot report that, it waits forever: the person's own answer shows the result.
async fn closed_elsewhere(remote: &Remote, item: &InboxItem) -> String {
    if let Ok(mut news) = remote.inbox_watch().await {
        let mut open = false;
        while let Some(Ok(news)) = news.next().await {
            match news {
                InboxNews::Opened(one) => open |= one.id == item.id,
                InboxNews::Closed(one) if one.id == item.id => return how_closed(&one),
                InboxNews::Closed(_) => {}
                // It was closed before this began to listen.
                InboxNews::Snapshot(_) if !open => {
                    return match remote.inbox_fetch(&item.id.to_string()).await {
                        Ok(closed) => how_closed(&closed),
                        Err(_) => "it no longer needs an answer".to_owned(),
                    };
                }
                InboxNews::Snapshot(_) => {}
            }
        }
    }
    std::future::pending().await
}

fn how_closed(item: &InboxItem) -> String {
    match (&item.answered_by, item.state) {
        (Some(by), InboxState::Approved) => format!("{by} has allowed it"),
        (Some(by), InboxState::Denied) => format!("{by} has denied it"),
        (Some(by), InboxState::Answered) => format!("{by} has answered it"),
        (_, _) => "it no longer needs an answer".to_owned(),
    }
}

/// A line that the person types; `None` at the end of input. It is read concurrently, so that `^C`
/// is noticed. Dropping the future leaves later input to the next question.
pub async fn typed(question: &str) -> Result<Option<String>, Failure> {
    let failed = |err: io::Error| Failure::failed(format!("reading the answer: {err}"));
    let _ = io::stderr().lock().write_all(clean::passing(question, true).as_bytes());
    let (said, heard) = tokio::sync::oneshot::channel();
    // The receiver is closed if no caller waits any more.
    let (gone, _here) = pipe_with(PipeFlags::CLOEXEC).map_err(|err| failed(err.into()))?;
    std::thread::spawn(move || {
        let read = line_unless(&gone);
        // If the person has left, nobody receives it.
        let _ = said.send(read);
    });
    heard.await.unwrap_or(Ok(None)).map_err(failed)
}

/// The next line of standard input, unless the reader of the pipe has closed it before.
fn line_unless(gone: &OwnedFd) -> io::Result<Option<String>> {
    loop {
        let stdin = io::stdin();
        let mut fds = [PollFd::new(&stdin, PollFlags::IN), PollFd::new(gone, PollFlags::IN)];
        match poll(&mut fds, None) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(err) => return Err(err.into()),
        }
        if !fds[1].revents().is_empty() {
            return Ok(None);
        }
        if !fds[0].revents().is_empty() {
            let mut line = String::new();
            let read = stdin.read_line(&mut line)?;
            return Ok((read > 0).then(|| line.trim().to_owned()));
        }
    }
}

/// The terminal without echo; dropped, it is as before.
struct Silent(Termios);

impl Silent {
    fn enter() -> io::Result<Self> {
        let before = tcgetattr(io::stdin().as_fd())?;
        let mut silent = before.clone();
        // Handles signals too: `^C` is read here, so that the terminal is restored before the end.
        silent.local_modes.remove(LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG);
        silent.special_codes[SpecialCodeIndex::VMIN] = 1;
        silent.special_codes[SpecialCodeIndex::VTIME] = 0;
        tcsetattr(io::stdin().as_fd(), OptionalActions::Flush, &silent)?;
        Ok(Self(before))
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        // A terminal that no longer exists cannot be restored.
        let _ = tcsetattr(io::stdin().as_fd(), OptionalActions::Flush, &self.0);
    }
}

/// Asks for a secret at the terminal; twice, if a typing error would lock the user out.
///
/// # Errors
///
/// [`Exit::Usage`] when there is no terminal, or the two differ.
pub fn ask(what: &str, twice: bool) -> Result<SecretText, Failure> {
    if !io::stdin().is_terminal() {
        return Err(Failure::usage(format!("there is no terminal to ask for {what}"))
            .hint("give it on standard input with --from-stdin"));
    }
    let first = line(&format!("{what}: "))?;
    if twice && line(&format!("{what} once more: "))? != first {
        return Err(Failure::usage("the two inputs differ: nothing was changed"));
    }
    Ok(first)
}

fn line(prompt: &str) -> Result<SecretText, Failure> {
    let failed = |err: io::Error| Failure::failed(format!("reading from the terminal: {err}"));
    // Silent before it asks: who types at once is not shown either.
    let silent = Silent::enter().map_err(failed)?;
    let mut said = io::stderr().lock();
    let _ = said.write_all(prompt.as_bytes()).and_then(|()| said.flush());
    let mut typed = Vec::with_capacity(512);
    let mut byte = [0];
    let done = loop {
        match io::stdin().read(&mut byte) {
            Ok(0) => break Ok(()),
            Ok(_) => match byte[0] {
                b'\r' | b'\n' | 4 => break Ok(()),
                3 => break Err(Failure::new(Exit::Failed, "canceled: nothing was changed")),
                8 | 127 => {
                    // The whole of a character that has several bytes.
                    while typed.pop().is_some_and(|last: u8| last & 0xc0 == 0x80) {}
                }
                // The line is wiped.
                21 => typed.clear(),
                _ if typed.len() > MAX_SECRET => {}
                byte => typed.push(byte),
            },
            Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
            Err(err) => break Err(failed(err)),
        }
    };
    drop(silent);
    let _ = said.write_all(b"\n");
    done?;
    text(typed)
}

/// The value that the flags name, or that a person types.
///
/// # Errors
///
/// Returns an error if it could not be read; never the value.
pub fn value(args: &ValueArgs, name: &str) -> Result<SecretText, Failure> {
    match (&args.from_file, args.from_stdin) {
        (Some(file), _) => of_file(file),
        (None, true) => of_stdin(),
        (None, false) => ask(&format!("Value of {name}"), false),
    }
}

/// # Errors
///
/// When it cannot be read, or can be no secret.
pub fn of_stdin() -> Result<SecretText, Failure> {
    let failed = |err: io::Error| Failure::failed(format!("reading standard input: {err}"));
    text(bounded(&mut io::stdin().lock()).map_err(failed)?)
}

fn of_file(file: &Path) -> Result<SecretText, Failure> {
    let failed = |err: io::Error| Failure::failed(format!("reading {}: {err}", file.display()));
    let mut file = std::fs::File::open(file).map_err(failed)?;
    text(bounded(&mut file).map_err(failed)?)
}

fn bounded(from: &mut dyn io::Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(MAX_SECRET as u64 + 1024).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn text(bytes: Vec<u8>) -> Result<SecretText, Failure> {
    let text =
        String::from_utf8(bytes).map_err(|_| Failure::usage("the value is not UTF-8 text"))?;
    // Said here without a way to the server; it checks again.
    match overmind_core::vault::Secret::new(&text) {
        Ok(secret) => Ok(SecretText::new(secret.expose())),
        Err(
            err @ (SecretError::Empty | SecretError::Short | SecretError::Long | SecretError::Nul),
        ) => Err(Failure::usage(format!("the value cannot be a secret: {err}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_request_is_granted_by_an_amount_in_the_unit_of_its_limit() {
        let usd = |text: &str| more(text, false).and_then(|raise| raise.usd);
        let tokens = |text: &str| more(text, true).and_then(|raise| raise.tokens);
        assert_eq!((usd("2"), usd("$0.5"), usd("2.5")), (Some(2.0), Some(0.5), Some(2.5)));
        assert_eq!((usd("y"), usd("-1"), usd("0"), usd("inf")), (None, None, None, None));
        assert_eq!((tokens("20,000"), tokens("1.5"), tokens("0")), (Some(20_000), None, None));
    }
}
