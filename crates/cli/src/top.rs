//! `top` and `monitor`: what runs, drawn again every second.

use std::collections::HashMap;
use std::io::IsTerminal as _;
use std::time::Duration;

use overmind_api::{ProcessUsage, Run, RunStatus, RunUsage, RunUsages, SessionId, Timestamp};
use overmind_client::LogOptions;
use overmind_core::time::Clock as _;
use overmind_node::app::clock::SystemClock;
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use crate::args_command::MonitorArgs;
use crate::attach::tty::{self, Raw};
use crate::context::Context;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::table::{Table, Tone};
use crate::output::{bold, clean, paint, when};
use crate::remote::Remote;
use crate::show::{self, cell, or_dash};
use crate::spoken::Spoken;
use crate::{command, ids, session, story, watch};

const BETWEEN_LOOKS: Duration = Duration::from_secs(1);
/// Between the two looks of `--once`: the server measures at most twice a second.
const BETWEEN_TWO: Duration = Duration::from_millis(600);
/// Keys that leave: q, ^C and escape.
const LEAVES: [u8; 3] = [b'q', 0x03, 0x1b];
/// Lines of a log where the terminal does not say how many fit.
const LINES: usize = 20;

/// The processor time of each attempt at the last measurement.
#[derive(Default)]
struct Shares {
    before: HashMap<(SessionId, u32), u64>,
    at: Option<Timestamp>,
    /// In hundredths of one processor.
    now: HashMap<(SessionId, u32), f64>,
}

impl Shares {
    /// Takes note of a look. The server's clock is what counts: it measured.
    fn look(&mut self, at: Timestamp, lives: impl Iterator<Item = (SessionId, u32, u64)>) {
        let passed = self.at.map(|before| at.since(before)).unwrap_or_default();
        if self.at.is_some() && passed.is_zero() {
            return; // The same measurement again.
        }
        let before = std::mem::take(&mut self.before);
        self.now.clear();
        for (run, life, cpu_ms) in lives {
            self.before.insert((run, life), cpu_ms);
            if let Some(then) = before.get(&(run, life)) {
                let share =
                    milliseconds(cpu_ms.saturating_sub(*then)) / passed.as_secs_f64() / 10.0;
                self.now.insert((run, life), share);
            }
        }
        self.at = Some(at);
    }

    fn of(&self, run: SessionId, life: u32) -> Option<f64> {
        self.now.get(&(run, life)).copied()
    }
}

#[expect(clippy::cast_precision_loss, reason = "rounding begins after 285,000 years")]
fn milliseconds(count: u64) -> f64 {
    count as f64
}

/// The result of a pause.
enum Next {
    Look,
    Leave(Exit),
}

/// The screen that is drawn on, and what ends the drawing.
struct Screen {
    raw: Raw,
    typed: mpsc::Receiver<Vec<u8>>,
    ends: tokio::signal::unix::Signal,
}

impl Screen {
    fn open() -> Result<Self, Failure> {
        let failed = |err: std::io::Error| Failure::failed(format!("setting the terminal: {err}"));
        let ends = signal(SignalKind::terminate()).map_err(failed)?;
        let typed = tty::typed().map_err(failed)?;
        let mut raw = Raw::enter().map_err(failed)?;
        // A screen of its own, without a cursor, on which long lines are cut.
        raw.write(b"\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J").map_err(failed)?;
        Ok(Self { raw, typed, ends })
    }

    /// Draws as many lines as fit.
    fn draw(&mut self, text: &str) -> Result<(), Failure> {
        let rows = tty::size().map_or(24, |size| size.rows);
        let text = clean::passing(text, true);
        let lines: Vec<&str> = text.lines().take(usize::from(rows)).collect();
        let mut bytes = "\x1b[H".to_owned();
        bytes.push_str(&lines.join("\x1b[K\r\n"));
        bytes.push_str("\x1b[K\x1b[J");
        Ok(self.raw.write(bytes.as_bytes())?)
    }

    async fn pause(&mut self, cx: &Context) -> Next {
        let until = cx.now().after(BETWEEN_LOOKS);
        loop {
            tokio::select! {
                () = SystemClock.sleep_until(until) => return Next::Look,
                typed = self.typed.recv() => match typed {
                    Some(typed) if !typed.iter().any(|byte| LEAVES.contains(byte)) => {}
                    Some(_) | None => return Next::Leave(Exit::Done),
                },
                _ = self.ends.recv() => return Next::Leave(Exit::of_command(128 + libc::SIGTERM)),
            }
        }
    }
}

fn drawn(once: bool, cx: &Context) -> bool {
    let terminal = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    !once && cx.out.for_people() && terminal
}

/// The last lines of what `logs` would show of the objects of a log.
fn in_words(objects: &str, spoken: Spoken, most: usize) -> Vec<String> {
    let mut spoken = Some(spoken);
    let mut lines = Vec::new();
    for line in objects.lines() {
        let Ok(object) = serde_json::from_str::<Value>(line) else { continue };
        if let Some(text) = object["text"].as_str() {
            let told = command::said(&object, text, &mut spoken, true);
            lines.extend(told.lines().map(str::to_owned));
        }
    }
    lines.split_off(lines.len().saturating_sub(most))
}

/// # Errors
///
/// Returns an error if the first request fails; later requests wait for a missing server.
pub async fn top(cx: &Context, once: bool) -> Outcome {
    let mut remote = Remote::connect(cx)?;
    let mut shares = Shares::default();
    let mut usages = remote.usages().await?;
    let noted = |shares: &mut Shares, usages: &RunUsages| {
        let lives = usages.runs.iter().map(|run| (run.run_id, run.life, run.usage.cpu_ms));
        shares.look(usages.at, lives);
    };
    noted(&mut shares, &usages);
    if !drawn(once, cx) {
        loop {
            SystemClock.sleep_until(cx.now().after(BETWEEN_TWO)).await;
            usages = remote.usages().await?;
            noted(&mut shares, &usages);
            match cx.out.for_people() {
                true => cx.out.table(&table(&mut usages, &shares))?,
                false if once => cx.out.value(&value(&usages, &shares))?,
                false => cx.out.streamed(&value(&usages, &shares))?,
            }
            if once || cx.out.for_people() {
                return Ok(Exit::Done);
            }
        }
    }
    let mut screen = Screen::open()?;
    let mut away = false;
    loop {
        let head = head(cx, &remote, &usages, away);
        let table = table(&mut usages, &shares).render(cx.out.colour);
        screen.draw(&format!("{head}\n{table}"))?;
        if let Next::Leave(exit) = screen.pause(cx).await {
            return Ok(exit);
        }
        // The server may be another one by now.
        let looked = async {
            let remote = if away { Remote::connect(cx)? } else { remote.clone() };
            Ok::<_, Failure>((remote.usages().await?, remote))
        };
        match looked.await {
            Ok((looked, at)) => (usages, remote, away) = (looked, at, false),
            Err(failure) if failure.exit == Exit::Unreachable => away = true,
            Err(failure) => return Err(failure),
        }
        noted(&mut shares, &usages);
    }
}

fn head(cx: &Context, remote: &Remote, usages: &RunUsages, away: bool) -> String {
    let memory: u64 = usages.runs.iter().map(|run| run.usage.resident_bytes).sum();
    let waiting = usages.runs.iter().filter(|run| run.prompt.is_some()).count();
    let count = usages.runs.len();
    let more = if usages.more { " and more" } else { "" };
    let text = format!(
        "{}  {count}{more} running, {waiting} waiting for somebody, {}",
        remote.place(),
        when::bytes(memory)
    );
    let head = bold(&text, cx.out.colour);
    match away {
        true => format!("{head}  {}\n", paint("the server is away", Tone::Bad, cx.out.colour)),
        false => format!("{head}\n"),
    }
}

/// The busiest first.
fn table(usages: &mut RunUsages, shares: &Shares) -> Table {
    let at = usages.at;
    let share = |run: &RunUsage| shares.of(run.run_id, run.life).unwrap_or(0.0);
    usages.runs.sort_by(|a, b| share(b).total_cmp(&share(a)).then_with(|| a.name.cmp(&b.name)));
    let mut table = Table::new(&[
        "ID",
        "NAME",
        "STATUS",
        "LIFE",
        "RESTARTS",
        "PID",
        "CPU%",
        "MEMORY",
        "PROCS",
        "SILENT",
        "WAITS FOR",
    ])
    .right("LIFE")
    .right("RESTARTS")
    .right("PID")
    .right("CPU%")
    .right("MEMORY")
    .right("PROCS")
    .right("SILENT");
    for run in &usages.runs {
        let cpu = shares.of(run.run_id, run.life).map(|share| format!("{share:.1}"));
        table.row(vec![
            cell(ids::short(&run.run_id.to_string())),
            cell(&run.name),
            (session::state(run.status).to_owned(), story::tone(run.status)),
            cell(run.life.to_string()),
            cell(run.restarts.to_string()),
            cell(run.pid.to_string()),
            or_dash(cpu),
            cell(when::bytes(run.usage.resident_bytes)),
            cell(run.usage.processes.to_string()),
            cell(when::span(at.since(run.usage.last_output_at))),
            or_dash(run.prompt.as_ref().map(|prompt| clean::cut(prompt, 60).into_owned())),
        ]);
    }
    table
}

fn value(usages: &RunUsages, shares: &Shares) -> Value {
    let runs = usages.runs.iter().map(|run| {
        let mut value = show::to_value(run);
        value["cpu_percent"] = json!(shares.of(run.run_id, run.life));
        value
    });
    json!({"at": usages.at, "runs": runs.collect::<Vec<_>>(), "more": usages.more})
}

/// The values that are shown for one run.
struct Look {
    run: Run,
    usage: Option<ProcessUsage>,
    lines: Vec<String>,
}

/// Reads a run and the end of its log: in words, if `spoken` parses its lines.
async fn look(
    remote: &Remote,
    id: &str,
    lines: usize,
    spoken: Option<&Spoken>,
) -> Result<Look, Failure> {
    let run = remote.run(id).await?;
    let usage = match run.process.as_ref().and_then(|process| process.pid) {
        Some(_) => remote.usage(id).await?,
        None => None,
    };
    let tail = u64::try_from(lines).ok();
    let objects = spoken.is_some();
    let options = LogOptions { tail, objects, strip: true, ..LogOptions::default() };
    let mut log = remote.run_log(id, &options).await?;
    let mut bytes = Vec::new();
    while let Some(piece) = log.next().await? {
        bytes.extend_from_slice(&piece);
    }
    let text = String::from_utf8_lossy(&bytes);
    let lines = match spoken {
        Some(spoken) => in_words(&text, spoken.anew(), lines),
        None => text.lines().map(|line| clean::line(line.trim_end()).into_owned()).collect(),
    };
    Ok(Look { run, usage, lines })
}

/// # Errors
///
/// Returns an error if the first request fails; later requests wait for a missing server.
pub async fn monitor(cx: &Context, args: &MonitorArgs) -> Outcome {
    let mut remote = Remote::connect(cx)?;
    let id = remote.find_run(&args.id).await?;
    let mut shares = Shares::default();
    let lines =
        || tty::size().map_or(LINES, |size| usize::from(size.rows).saturating_sub(5).max(1));
    let spoken = match cx.out.for_people() {
        true => Spoken::of(cx, &remote, &remote.run(&id).await?).await?,
        false => None,
    };
    let mut seen = look(&remote, &id, lines(), spoken.as_ref()).await?;
    if !drawn(args.once, cx) {
        if cx.out.for_people() {
            cx.out.text(&shown(cx, &seen, &shares))?;
        } else {
            let value = json!({
                "run": show::to_value(&seen.run), "process_usage": seen.usage, "lines": seen.lines,
            });
            cx.out.value(&value)?;
        }
        return Ok(Exit::Done);
    }
    let mut screen = Screen::open()?;
    let mut away = false;
    loop {
        if let (Some(process), Some(usage)) = (&seen.run.process, &seen.usage) {
            shares.look(cx.now(), std::iter::once((seen.run.id, process.life, usage.cpu_ms)));
        }
        let mut text = shown(cx, &seen, &shares);
        if away {
            text.insert_str(0, &paint("the server is away\n", Tone::Bad, cx.out.colour));
        }
        screen.draw(&text)?;
        if seen.run.status == RunStatus::Idle {
            drop(screen);
            cx.out.text(&shown(cx, &seen, &shares))?;
            watch::epilogue(cx, &remote, &seen.run).await;
            return Ok(Exit::Done);
        }
        if session::ended(seen.run.status) {
            drop(screen);
            cx.out.text(&shown(cx, &seen, &shares))?;
            return Ok(command::exit_of(&seen.run));
        }
        if let Next::Leave(exit) = screen.pause(cx).await {
            return Ok(exit);
        }
        let looked = async {
            let remote = if away { Remote::connect(cx)? } else { remote.clone() };
            Ok::<_, Failure>((look(&remote, &id, lines(), spoken.as_ref()).await?, remote))
        };
        match looked.await {
            Ok((looked, at)) => (seen, remote, away) = (looked, at, false),
            Err(failure) if failure.exit == Exit::Unreachable => away = true,
            Err(failure) => return Err(failure),
        }
    }
}

/// One line of state, one of what it uses, and the end of its log.
fn shown(cx: &Context, seen: &Look, shares: &Shares) -> String {
    let run = &seen.run;
    let status = paint(session::state_of(run), story::tone(run.status), cx.out.colour);
    let mut head = format!("{}  {status}", bold(&run.name, cx.out.colour));
    if let Some(process) = &run.process {
        head.push_str(&format!(
            "  attempt {}, {}",
            process.life,
            when::counted(process.restarts.into(), "restart")
        ));
        if let Some(pid) = process.pid {
            head.push_str(&format!(", pid {pid}"));
        }
        if let (None, Some(code)) = (process.pid, process.exit_code) {
            head.push_str(&format!(", exit code {code}"));
        }
    }
    let mut text = format!("{head}\n");
    if let Some(usage) = &seen.usage {
        let life = run.process.as_ref().map_or(0, |process| process.life);
        let share = match shares.of(run.id, life) {
            Some(share) => format!("{share:.1}%"),
            None => "-".to_owned(),
        };
        text.push_str(&format!(
            "cpu {share}  memory {}  {}  silent for {}  log {}\n",
            when::bytes(usage.resident_bytes),
            when::counted(usage.processes.into(), "process"),
            when::span(cx.now().since(usage.last_output_at)),
            when::bytes(usage.log_bytes)
        ));
    }
    if let Some(prompt) = &run.prompt {
        let asks = paint("asks:", Tone::Waits, cx.out.colour);
        text.push_str(&format!("{asks} {}\n", clean::line(prompt)));
    }
    if let Some(why) = &run.trouble {
        let head = paint("its model calls fail:", Tone::Bad, cx.out.colour);
        text.push_str(&format!("{head} {}\n", clean::line(why)));
    }
    text.push('\n');
    for line in &seen.lines {
        text.push_str(line);
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protocol_output_is_shown_as_the_last_line_in_words() {
        let line = |kind: &str, text: &str| {
            json!({"kind": kind, "text": text, "at": "2026-11-21T20:19:55.182849+00:00"})
                .to_string()
        };
        let said = |text: &str| {
            let text = json!({"type": "assistant", "message": {"content": [{"type": "text", "text": text}]}});
            line("output", &text.to_string())
        };
        let log = [said("One."), said("Two.\nThree."), line("ended", "--- ended: exit code 0 ---")];
        let spoken = Spoken::new(overmind_core::process::prompt::Provider::Claude, false, false);
        let shown = in_words(&log.join("\n"), spoken.anew(), 2);
        assert_eq!(shown, ["20:19:55  Two.", "          Three."]);
        assert_eq!(in_words(&log.join("\n"), spoken, 9).len(), 3);
    }

    #[test]
    fn cpu_share_is_computed_between_two_measurements() {
        let run = SessionId::from_u128(1);
        let at = |ms: i64| Timestamp::from_micros(ms * 1000);
        let mut shares = Shares::default();
        shares.look(at(0), std::iter::once((run, 1, 500)));
        assert_eq!(shares.of(run, 1), None, "one measurement says nothing");
        shares.look(at(2000), std::iter::once((run, 1, 1500)));
        assert_eq!(shares.of(run, 1), Some(50.0));
        shares.look(at(2000), std::iter::once((run, 1, 1500)));
        assert_eq!(shares.of(run, 1), Some(50.0), "the same one again changes nothing");
        shares.look(at(3000), std::iter::once((run, 2, 10)));
        assert_eq!((shares.of(run, 1), shares.of(run, 2)), (None, None), "another life");
    }
}
