//! Periodic work of the server: shown, paused, run by hand, across a kill.

use serde_json::Value;

use crate::home::{Home, until};

fn named(home: &Home, name: &str) -> Value {
    let all = home.run(&["loop", "list", "-o", "json"]).ok().json();
    let all = all.as_array().expect("a list");
    all.iter().find(|one| one["name"] == name).unwrap_or_else(|| panic!("no {name}")).clone()
}

#[test]
fn loops_are_listed_paused_across_a_kill_run_by_hand_and_resumed() {
    let mut home = Home::up();
    home.run(&["loop", "list"])
        .ok()
        .shows("NAME")
        .shows("checkpoints")
        .shows("dispatcher")
        .shows("expired-memory")
        .shows("permissions-file")
        .shows("policy-file")
        .shows("vault-audit");
    home.run(&["loop", "pause", "expired-memory"]).ok().shows("paused");
    home.kill();
    home.start(&["--listen", "none"], &[]);
    let paused = named(&home, "expired-memory");
    assert_eq!((&paused["state"], &paused["next_at"]), (&"paused".into(), &Value::Null));
    let ran = home.run(&["loop", "run", "expired-memory", "-o", "json"]).ok().json();
    assert_eq!((&ran["passes"], &ran["last"]["ok"]), (&1.into(), &true.into()), "{ran}");
    assert_eq!(ran["state"], "paused", "one pass by hand is no end of the pause");
    home.run(&["loop", "resume", "expired-memory"]).ok();
    until("a pass came by itself", || {
        (named(&home, "expired-memory")["passes"] == 2).then_some(())
    });
    home.run(&["loop", "run", "expired-memori"]).fails(3).says("did you mean `expired-memory`?");
    home.run(&["audit", "verify"]).ok();
}

#[test]
fn a_failing_pass_is_shown_until_its_cause_is_fixed() {
    let home = Home::up();
    let file = home.data().join("policy.toml");
    std::fs::write(&file, "this is no policy").expect("the directory is there");
    home.run(&["loop", "run", "policy-file"]).fails(1).shows("failing").shows("not a policy");
    assert_eq!(named(&home, "policy-file")["state"], "failing");
    std::fs::remove_file(&file).expect("it is there");
    std::fs::write(&file, "version = 1\n").expect("the directory is there");
    home.run(&["loop", "run", "policy-file"]).ok().shows("waiting");
}
