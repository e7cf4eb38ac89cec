use proptest::prelude::*;

use super::*;

fn matrix(entries: &[(&str, Verb, &[&str])]) -> Matrix {
    let mut all: BTreeMap<String, Permissions> = BTreeMap::new();
    for (agent, verb, patterns) in entries {
        let own = all.entry((*agent).to_owned()).or_default();
        own.of_mut(*verb).extend(patterns.iter().map(|p| (*p).to_owned()));
    }
    Matrix::new(&all, &BTreeMap::new())
}

#[test]
fn an_agents_own_entry_overrides_the_default_and_no_entry_means_denied() {
    let matrix = matrix(&[("a", Verb::Message, &["b"]), ("default", Verb::Message, &["c"])]);
    assert_eq!(matrix.may("a", Verb::Message, "b").rule, "a.can_message: `b`");
    let denied = matrix.may("a", Verb::Message, "c");
    assert!(!denied.allowed, "an own entry is not added to the default");
    assert_eq!(denied.rule, "no pattern of a.can_message matches `c`");
    assert_eq!(
        denied.ask_for.as_deref(),
        Some("`c` in can_message of `a`: overmind acl allow 'a' message 'c'")
    );
    assert!(matrix.may("x", Verb::Message, "c").allowed);
    assert!(!Matrix::default().may("mesh", Verb::Message, "b").allowed, "no name is above it");
    assert!(!Matrix::default().may("orchestrator", Verb::Read, "b").allowed);
}

#[test]
fn an_entry_of_the_api_replaces_the_entry_of_the_file() {
    let of = |pattern: &str| {
        let own = Permissions { spawn: vec![pattern.to_owned()], ..Permissions::default() };
        BTreeMap::from([("a".to_owned(), own)])
    };
    let matrix = Matrix::new(&of("x"), &of("y"));
    assert!(!matrix.may("a", Verb::Spawn, "x").allowed);
    assert!(matrix.may("a", Verb::Spawn, "y").allowed);
}

#[test]
fn the_permission_file_of_the_reference_is_read_and_a_typo_is_reported() {
    let text = r#"{"permissions": {"default": {"can_message": ["*"], "allowed_apis": ["llm"]}}}"#;
    let file: PermissionsFile = serde_json::from_str(text).unwrap();
    assert_eq!(file.permissions["default"].can_message, ["*"]);
    file.check().unwrap();
    let wrong = r#"{"permissions": {"a": {"can_mesage": []}}}"#;
    let err = serde_json::from_str::<PermissionsFile>(wrong).unwrap_err().to_string();
    assert!(err.contains("can_mesage"), "{err}");
    let mut deep = file;
    deep.permissions.get_mut("default").unwrap().models.push("a***".into());
    assert!(deep.check().unwrap_err().starts_with("permissions.default: models: `a***`"));
}

#[test]
fn a_spawned_agent_has_the_permissions_of_its_parent() {
    let matrix = matrix(&[("boss", Verb::Read, &["plans/**"]), ("default", Verb::Read, &["x"])]);
    let child = "spawn_0123456789ab";
    assert!(matrix.may_in_line(&[child, "boss"], Verb::Read, "plans/a").allowed);
    assert!(!matrix.may_in_line(&[child, "boss"], Verb::Read, "x").allowed);
    assert!(matrix.may_in_line(&[child], Verb::Read, "x").allowed, "alone: the default");
    assert!(!matrix.may_in_line(&["other", "boss"], Verb::Read, "plans/a").allowed);
    assert!(!is_spawned("spawn_0123456789aZ") && !is_spawned("spawn_1"));
}

#[test]
fn a_subscription_requires_permission_for_all_keys_of_its_pattern() {
    let matrix = matrix(&[("a", Verb::Subscribe, &["news.*"])]);
    let may = |wanted| matrix.may_pattern(&["a"], Verb::Subscribe, wanted).allowed;
    assert!(may("news.*") && may("news.eu"));
    assert!(!may("news.**") && !may("*.eu") && !may("**"));
}

const AGENTS: [&str; 4] = ["a", "b", "spawn_00000000000a", "default"];

prop_compose! {
    fn any_matrix()(
        entries in proptest::collection::vec((0_usize..4, "[xy/*]{1,4}"), 0..8),
    ) -> Matrix {
        let mut all: BTreeMap<String, Permissions> = BTreeMap::new();
        for (agent, pattern) in entries {
            all.entry(AGENTS[agent].to_owned()).or_default().blackboard_read.push(pattern);
        }
        Matrix::new(&all, &BTreeMap::new())
    }
}

proptest! {
    #[test]
    fn a_child_has_no_permission_that_its_parent_lacks(
        matrix in any_matrix(),
        line in proptest::collection::vec(0_usize..3, 1..5),
        key in "[xy/]{1,5}",
    ) {
        let line: Vec<&str> = line.into_iter().map(|at| AGENTS[at]).collect();
        for child in 0..line.len() {
            if matrix.may_in_line(&line[child..], Verb::Read, &key).allowed {
                for parent in child..line.len() {
                    let above = matrix.may_in_line(&line[parent..], Verb::Read, &key);
                    prop_assert!(above.allowed, "{:?} {} {}", line, child, above.rule);
                }
            }
        }
    }

    #[test]
    fn a_denial_names_the_missing_permission(matrix in any_matrix(), key in "[xy/]{1,5}") {
        let verdict = matrix.may("a", Verb::Read, &key);
        prop_assert_eq!(verdict.allowed, verdict.ask_for.is_none());
    }
}
