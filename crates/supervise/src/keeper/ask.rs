//! Requests of daemons.

use std::os::fd::AsFd;
use std::time::Duration;

use crate::keeper::child::{Streams, window};
use crate::keeper::peer::{Heard, Peer};
use crate::keeper::{Keeper, MAX_PEERS, Phase};
use crate::record::{self, Kind};
use crate::sys;
use crate::wire::{Answer, Ask, Frame, FromKeeper, Running, Size, ToKeeper};

impl Keeper {
    pub(super) fn accept(&mut self) {
        let flags = rustix::net::SocketFlags::CLOEXEC | rustix::net::SocketFlags::NONBLOCK;
        while let Ok(stream) = rustix::net::accept_with(&self.listener, flags) {
            let room = self.peers.len() < MAX_PEERS;
            if room
                && Peer::may_speak(&stream)
                && let Ok(peer) = Peer::new(self.next_peer, stream)
            {
                self.next_peer += 1;
                self.peers.push(peer);
            }
        }
    }

    pub(super) fn hear_peer(&mut self, n: usize) {
        let mut buffer = std::mem::take(&mut self.buffer);
        self.peers[n].read(&mut buffer);
        self.buffer = buffer;
        loop {
            match self.peers[n].heard() {
                Heard::Nothing => return,
                Heard::Said(Frame::Message(message)) => self.obey(n, message),
                Heard::Said(Frame::Input { id, bytes }) => {
                    let peer = &self.peers[n];
                    let pushed = match peer.greeted {
                        true => self.input.push(peer, id, bytes, &self.streams),
                        false => Err("say hello first".to_owned()),
                    };
                    match pushed {
                        Ok(()) => self.write_input(),
                        Err(why) => self.answer(n, id, Answer::Failed(why)),
                    }
                }
                Heard::Said(Frame::Unknown(text)) => {
                    let text: serde_json::Value = serde_json::from_slice(&text).unwrap_or_default();
                    if let Some(id) = text["Request"]["id"].as_u64() {
                        let why = "this keeper was started by an older version and does not know \
                                   how to do that";
                        self.answer(n, id, Answer::Failed(why.to_owned()));
                    }
                }
            }
        }
    }

    /// Forgets closed connections. A process does not end with the daemon that started it, even if
    /// that never learnt of the start: the daemon may have been killed, and the next one will look
    /// for the process. A daemon that no longer wants it must say so.
    pub(super) fn drop_peers(&mut self) {
        for n in 0..self.peers.len() {
            if self.peers[n].gone {
                // Requests sent before the connection closed still count.
                self.hear_peer(n);
            }
        }
        self.peers.retain(|peer| !peer.gone);
    }

    pub(super) fn write_input(&mut self) {
        self.input.write(&mut self.streams, &mut self.peers);
    }

    fn obey(&mut self, n: usize, message: ToKeeper) {
        match message {
            ToKeeper::Hello { protocol: _ } => {
                let peer = &mut self.peers[n];
                peer.greeted = true;
                let running = Running { end: self.log.offset(), ..self.running.clone() };
                peer.say(&FromKeeper::Running(running));
                if let Phase::Over { exit, .. } = self.phase {
                    peer.say(&FromKeeper::Exited(exit));
                }
            }
            // A second order is invalid.
            ToKeeper::Start(_) => self.peers[n].gone = true,
            ToKeeper::Request { id, ask } => {
                if !self.peers[n].greeted {
                    self.answer(n, id, Answer::Failed("say hello first".to_owned()));
                    return;
                }
                if let Some(answer) = self.request(n, id, ask) {
                    self.answer(n, id, answer);
                }
            }
        }
    }

    /// Handles a request; returns `None` if the answer is sent later.
    fn request(&mut self, n: usize, id: u64, ask: Ask) -> Option<Answer> {
        let over = matches!(self.phase, Phase::Over { .. });
        Some(match ask {
            Ask::Acknowledge => {
                if over {
                    self.acknowledge();
                    // Closing our end of the connection is the answer.
                    return None;
                } else {
                    Answer::Failed("it has not ended".to_owned())
                }
            }
            Ask::Watch(watches) => {
                self.peers[n].watches = watches;
                Answer::Ok
            }
            Ask::Note { kind, text } => {
                if over {
                    // The log no longer belongs to this process.
                    Answer::Failed("it has ended".to_owned())
                } else {
                    self.note(kind.into(), &text);
                    Answer::Ok
                }
            }
            _ if over => Answer::Failed("it has ended".to_owned()),
            Ask::End { grace_ms, reason } => {
                self.end(grace_ms.map(Duration::from_millis), reason);
                Answer::Ok
            }
            Ask::Signal(signal) => match self.signal(signal) {
                Ok(()) => Answer::Ok,
                Err(err) => Answer::Failed(err.to_string()),
            },
            Ask::Resize { size, redraw } => self.resize(size, redraw),
            Ask::CloseInput => match self.input.close(&self.peers[n], id, &self.streams) {
                Ok(()) => {
                    self.write_input();
                    return None;
                }
                Err(why) => Answer::Failed(why),
            },
            Ask::CancelInput { id: input } => {
                let name = self.peers[n].name;
                self.input.cancel(&mut self.peers, name, input);
                Answer::Ok
            }
            Ask::Usage => self.usage(),
        })
    }

    /// Signals the processes that a key in the terminal would reach, otherwise the command's own
    /// group.
    fn signal(&self, signal: i32) -> std::io::Result<()> {
        let group = match &self.streams {
            Streams::Terminal { master, .. } => rustix::termios::tcgetpgrp(master).ok(),
            Streams::Pipes { .. } => None,
        };
        match group {
            Some(group) => sys::kill_group(group, signal),
            None => self.tree.signal_main(signal),
        }
    }

    fn resize(&mut self, size: Size, redraw: bool) -> Answer {
        let Streams::Terminal { master, .. } = &self.streams else {
            return Answer::Failed("it has no terminal".to_owned());
        };
        let before = rustix::termios::tcgetwinsize(master.as_fd());
        let same = before.is_ok_and(|b| (b.ws_col, b.ws_row) == (size.columns, size.rows));
        if let Err(err) = rustix::termios::tcsetwinsize(master, window(size)) {
            return Answer::Failed(err.to_string());
        }
        if same && redraw {
            // The kernel signals only changes. It is no error if there is no foreground process.
            let _ = self.signal(libc::SIGWINCH);
        }
        self.running.terminal = Some(size);
        Answer::Ok
    }

    fn usage(&self) -> Answer {
        let list = self.tree.list();
        let lived: u64 = list.iter().map(|stat| super::micros(stat.cpu())).sum();
        let ended = sys::children_usage();
        let counted = self.tree.group.cpu().map(|(user, system)| super::micros(user + system));
        Answer::Usage {
            cpu_us: counted.unwrap_or(lived + ended.user_us + ended.system_us),
            resident_bytes: list.iter().map(crate::proc::Stat::resident_bytes).sum(),
            processes: u32::try_from(list.len()).unwrap_or(u32::MAX),
        }
    }

    /// The exit is recorded elsewhere, so only the log must stay.
    fn acknowledge(&mut self) {
        for kind in [Kind::Socket, Kind::Life] {
            // A record that remains is reported again after the next restart, which is harmless. No
            // record of the exit was written, because this process still has it.
            let _ = record::remove_whole(&self.dir, kind, self.key.epoch);
        }
        self.acknowledged = true;
    }
}
