//! `overmind policy`: dry runs, without a server.

use crate::home::Home;

#[test]
fn a_command_is_explained_without_a_server() {
    let home = Home::new();
    let done =
        home.run(&["policy", "explain", "--command", "env sh -c 'rm -rf src'", "-o", "json"]).ok();
    let value = done.json();
    assert_eq!(value["verdict"]["decision"], "ask");
    let actions = value["verdict"]["actions"].as_array().unwrap();
    let rm = actions.iter().find(|action| action["program"] == "rm").unwrap();
    assert_eq!(rm["touches"][0], serde_json::json!({"kind": "delete", "target": "src"}));
    assert_eq!(rm["via"], serde_json::json!(["env", "sh"]));
    let text = home.run(&["policy", "explain", "--command", "sudo ls", "-o", "table"]).ok();
    text.shows("deny").shows("privilege (built in)");
    let tool = home
        .run(&[
            "policy",
            "explain",
            "--tool",
            "read_file",
            "--args",
            "{\"path\":\".env\"}",
            "-o",
            "name",
        ])
        .ok();
    assert_eq!(tool.line(), "deny");
    home.run(&["policy", "explain"]).fails(2);
}

#[test]
fn recorded_calls_are_tested_against_the_policy_file_of_the_data_directory() {
    let home = Home::new();
    let calls = home.work().join("calls.jsonl");
    std::fs::write(
        &calls,
        "{\"tool\":\"run_shell\",\"args\":{\"command\":\"rm a\"},\"expect\":\"deny\"}\n",
    )
    .unwrap();
    home.run(&["policy", "test", "calls.jsonl"])
        .fails(1)
        .says("1 of 1 calls are not judged as expected");
    std::fs::create_dir_all(home.data()).unwrap();
    let policy = home.data().join("policy.toml");
    std::fs::write(
        &policy,
        "version = 1\n[[rule]]\nid = \"no-rm\"\nverdict = \"deny\"\nprograms = [\"rm\"]\n",
    )
    .unwrap();
    home.run(&["policy", "test", "calls.jsonl", "-o", "table"]).ok().shows("no-rm");
    home.run(&["policy", "show", "-o", "json"]).ok().shows("no-rm");
    std::fs::write(
        &policy,
        "version = 1\n[[rule]]\nid = \"x\"\nverdict = \"deny\"\nprogram = [\"rm\"]\n",
    )
    .unwrap();
    home.run(&["policy", "show"]).fails(1).says("policy.toml:5:1");
    std::fs::write(&calls, "nonsense\n").unwrap();
    home.run(&["policy", "test", "calls.jsonl", "--policy", "../data/none.toml"])
        .fails(1)
        .says("reading the policy");
}
