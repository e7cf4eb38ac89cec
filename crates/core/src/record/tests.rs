use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::bounds::*;
use super::condition::{Condition, ConditionStatus, MAX_CONDITIONS, conditions, set_in};
use super::kind::{KINDS, find, words};
use super::label::{Requirement, Test, check_key, check_value};
use super::*;
use crate::row::Role;

fn labels(all: &[(&str, &str)]) -> BTreeMap<String, String> {
    all.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

#[test]
fn names_keys_and_owners_have_one_canonical_spelling() {
    for good in ["a", "nightly-28374", "a.b-c.0", &"a".repeat(253)] {
        assert_eq!(Name::parse(good).unwrap().as_str(), good);
    }
    for (bad, why) in [
        ("", "must have 1 to 253 characters"),
        ("Nightly", "may have small letters, digits, hyphens and dots, not `N` at position 1"),
        ("a/b", "may have small letters, digits, hyphens and dots, not `/` at position 2"),
        ("aö", "may have small letters, digits, hyphens and dots, not U+00F6 at position 2"),
        ("a..b", "must begin and end with a letter or digit, also around each dot"),
        ("a-.b", "must begin and end with a letter or digit, also around each dot"),
    ] {
        assert_eq!(Name::parse(bad).unwrap_err().to_string(), why, "{bad}");
    }
    assert!(Name::parse(&"a".repeat(254)).is_err());
    assert!(Kind::parse("ritual").is_ok() && Kind::parse("").is_err());
    assert!(Kind::parse("1a").is_err() && Kind::parse("a_b").is_err());
    for owner in [Owner::Record(RecordId::from_u128(7)), Owner::Session(SessionId::from_u128(7))] {
        assert_eq!(owner.to_string().parse(), Ok(owner));
    }
    assert!("sesx_00".parse::<Owner>().is_err());
}

#[test]
fn label_syntax_is_that_of_kubernetes() {
    for good in ["tier", "a", "A_b.c-0", "example.com/tier", &format!("a/{}", "k".repeat(63))] {
        assert_eq!(check_key(good), Ok(()), "{good}");
    }
    for bad in ["", "-a", "a-", "a b", "/a", "a/", "a/b/c", "A.com/x", &"k".repeat(64), "ö"] {
        assert!(check_key(bad).is_err(), "{bad}");
    }
    for good in ["", "web", "1.2_3", &"v".repeat(63)] {
        assert_eq!(check_value(good), Ok(()), "{good}");
    }
    for bad in [".", "a/b", "a\n", &"v".repeat(64)] {
        assert!(check_value(bad).is_err(), "{bad}");
    }
}

#[test]
fn selectors_match_as_in_kubernetes() {
    let web = labels(&[("app", "web"), ("x.io/tier", "gold"), ("empty", "")]);
    for (text, want) in [
        ("", true),
        ("app=web", true),
        ("app == web", true),
        ("app=db", false),
        ("app!=db", true),
        ("app!=web", false),
        ("none!=web", true),
        ("app in (db, web)", true),
        ("app in (db)", false),
        ("none in (web)", false),
        ("app notin (db)", true),
        ("none notin (db)", true),
        ("app notin(web,db)", false),
        ("app", true),
        ("!app", false),
        ("! none", true),
        ("x.io/tier=gold,app=web,!none", true),
        ("x.io/tier=gold,app=db", false),
        ("empty=", true),
        ("empty in (,a)", true),
        ("app=", false),
        ("in in (web)", false),
    ] {
        assert_eq!(Selector::parse(text).unwrap().matches(&web), want, "{text}");
    }
    assert!(Selector::equals("app", "web").unwrap().matches(&web));
    assert!(Selector::equals("app", "not this").is_err());
}

#[test]
fn an_invalid_selector_is_reported_with_its_position() {
    for (text, want) in [
        (",", "1: expected a label key, not `,`"),
        ("a,", "3: a requirement must follow the comma"),
        ("app = w b", "9: expected a comma or the end, not `b`"),
        ("app web", "5: `=`, `!=`, `in` or `notin` must follow a key, not `web`"),
        ("app in web", "8: expected `(` and a list of values, not `w`"),
        ("app in (web", "12: expected a comma or `)`, but the selector ends"),
        (
            "app=a/b",
            "5: the value may have letters, digits, `-`, `_` and `.`, not `/` at position 2",
        ),
        ("ä=b", "1: the key may have letters, digits, `-`, `_` and `.`, not U+00E4 at position 1"),
        ("a=b,=c", "5: expected a label key, not `=`"),
        ("a(b)", "2: expected a comma or the end, not `(`"),
    ] {
        let err = Selector::parse(text).unwrap_err().to_string();
        assert_eq!(err, format!("the selector is wrong at position {want}"), "{text}");
    }
    assert!(Selector::parse(&["a"; 33].join(",")).is_err());
    assert!(Selector::parse(&"a".repeat(5000)).is_err());
    let many = (0..65).map(|n| format!("v{n}")).collect::<Vec<_>>().join(",");
    assert!(Selector::parse(&format!("a in ({many})")).is_err());
}

#[test]
fn all_mistakes_of_a_record_are_reported_with_their_paths() {
    let many: BTreeMap<_, _> = (0..65).map(|n| (format!("k{n}"), String::new())).collect();
    assert_eq!(check_labels(&many)[0].to_string(), "metadata.labels has 65 labels; 64 is the most");
    let wrong = check_labels(&labels(&[("a b", "x"), ("c", "d e")]));
    assert_eq!(
        wrong.iter().map(|w| w.path.as_str()).collect::<Vec<_>>(),
        ["metadata.labels.a b", "metadata.labels.c"]
    );
    assert!(wrong[1].hint.is_some());
    assert_eq!(check_annotations(&many).len(), 1);
    assert_eq!(check_annotations(&labels(&[("a", &"x".repeat(32 << 10))])).len(), 1);
    assert_eq!(check_annotations(&labels(&[("a", &"x".repeat((32 << 10) - 1))])), []);
    let twice = ["a".to_owned(), "a".to_owned(), "b c".to_owned()];
    assert_eq!(check_finalizers(&twice).len(), 2);
    let seventeen: Vec<_> = (0..17).map(|n| format!("f{n}")).collect();
    assert_eq!(check_finalizers(&seventeen).len(), 1);

    assert_eq!(check_body("spec", &json!({"a": 1})), []);
    assert_eq!(check_body("spec", &json!([]))[0].to_string(), "spec must be an object");
    let text = |bytes: usize| json!({ "a": "x".repeat(bytes) });
    assert_eq!(check_body("spec", &text(MAX_BODY - r#"{"a":""}"#.len())), []);
    assert_eq!(check_body("status", &text(MAX_BODY)).len(), 1);
    let deep = |levels: usize| (0..levels).fold(Value::Null, |inner, _| json!({ "a": inner }));
    assert_eq!(check_body("spec", &deep(64)), []);
    assert_eq!(check_body("spec", &deep(65)).len(), 1);

    let terms = |n: usize| (0..n).map(|_| Term::new("agent", "x")).collect::<Terms>();
    assert_eq!(check_terms(&terms(8)), []);
    assert_eq!(check_terms(&terms(9)).len(), 1);
    let wrong = vec![Term::new("a/b", "x"), Term::new("a", "x".repeat(254))];
    assert_eq!(check_terms(&wrong).len(), 2);
}

#[test]
fn a_condition_changes_its_time_only_with_its_status() {
    let condition = |status, reason: &str, at| Condition {
        kind: "Complete".into(),
        status,
        reason: reason.into(),
        message: String::new(),
        observed_generation: 1,
        last_transition: Timestamp::from_micros(at),
    };
    use ConditionStatus::{False, True};
    let mut status = json!({ "runs": 3, "conditions": [7, {"type": "Half"}] });
    assert!(set_in(&mut status, condition(False, "Running", 1)));
    assert!(!set_in(&mut status, condition(False, "Running", 2)), "nothing new");
    assert!(set_in(&mut status, condition(False, "Waiting", 3)));
    assert_eq!(conditions(&status), [condition(False, "Waiting", 1)]);
    assert!(set_in(&mut status, condition(True, "Done", 4)));
    assert_eq!(conditions(&status), [condition(True, "Done", 4)]);
    assert_eq!(status["runs"], 3);
    assert_eq!(
        status["conditions"][0],
        json!({
            "type": "Complete", "status": "True", "reason": "Done", "message": "",
            "observedGeneration": 1, "lastTransition": "1970-01-01T00:00:00.000004+00:00",
        })
    );

    for n in 0..40 {
        set_in(&mut status, Condition { kind: format!("T{n}"), ..condition(True, "", 10 + n) });
    }
    let left = conditions(&status);
    assert_eq!(left.len(), MAX_CONDITIONS);
    assert_eq!(left[0].kind, "T8", "the one that changed first went first");
    let mut none = Value::Null;
    assert!(set_in(&mut none, condition(True, "", 1)));
    assert_eq!(conditions(&none).len(), 1);
}

const NOTE: KindInfo = KindInfo {
    name: "note",
    plural: "notes",
    aliases: &["nt", "memo"],
    check: |_| Vec::new(),
    terms: |_| Vec::new(),
    due: |_, _| None,
    role: |_| Role::Operator,
    columns: &[],
    schema: || json!({}),
    changed_by: None,
};

#[test]
fn kinds_are_found_by_all_their_names() {
    let kinds = [NOTE];
    for word in ["note", "Notes", "MEMO", "nt"] {
        assert_eq!(find(&kinds, word).unwrap().name, "note");
    }
    let err = find(&kinds, "ntoe").unwrap_err();
    assert_eq!(err.to_string(), "there is no kind `ntoe`; did you mean `note`?");
    assert_eq!(find(&kinds, "banana").unwrap_err().to_string(), "there is no kind `banana`");
}

#[test]
fn kinds_have_valid_names_and_share_none() {
    let all: Vec<_> = KINDS.iter().chain(&[NOTE]).collect();
    let mut known = std::collections::BTreeSet::new();
    for kind in all {
        assert!(Kind::parse(kind.name).is_ok(), "{}", kind.name);
        for word in words(kind) {
            assert!(known.insert(word), "`{word}` names two kinds");
            assert_eq!(word, word.to_ascii_lowercase());
        }
    }
}

fn requirement() -> impl Strategy<Value = Requirement> {
    let values = || proptest::collection::btree_set("[ab]{0,1}", 1..3);
    let test = prop_oneof![
        values().prop_map(Test::In),
        values().prop_map(Test::NotIn),
        Just(Test::Exists),
        Just(Test::Missing),
    ];
    ("[k-m]|in|notin", test).prop_map(|(key, test)| Requirement { key, test })
}

proptest! {
    #[test]
    fn a_printed_selector_parses_to_the_same_selector(
        all in proptest::collection::vec(requirement(), 0..5),
        known in proptest::collection::btree_map("[k-m]|in|notin", "[ab]{0,1}", 0..4),
    ) {
        // Written as a person may: with blanks, `==`, and lists of one.
        let spaced: Vec<_> = all.iter().map(|one| {
            let list = |values: &std::collections::BTreeSet<String>| {
                values.iter().cloned().collect::<Vec<_>>().join(" , ")
            };
            match &one.test {
                Test::In(values) => format!(" {} in ( {} ) ", one.key, list(values)),
                Test::NotIn(values) => format!("{}\tnotin ({})", one.key, list(values)),
                Test::Exists => format!("{} ", one.key),
                Test::Missing => format!("! {}", one.key),
            }
        }).collect();
        let parsed = Selector::parse(&spaced.join(" , ")).unwrap();
        prop_assert_eq!(parsed.requirements(), &all[..]);
        prop_assert_eq!(&Selector::parse(&parsed.to_string()).unwrap(), &parsed);
        let want = all.iter().all(|one| match (&one.test, known.get(&one.key)) {
            (Test::In(values), found) => found.is_some_and(|value| values.contains(value)),
            (Test::NotIn(values), Some(value)) => !values.contains(value),
            (Test::NotIn(_) | Test::Missing, None) | (Test::Exists, Some(_)) => true,
            (Test::Missing, Some(_)) | (Test::Exists, None) => false,
        });
        prop_assert_eq!(parsed.matches(&known), want);
    }

    #[test]
    fn no_text_panics_the_parser(text in "[a-c=!,() /ö\t.-]{0,30}|\\PC{0,30}") {
        if let Err(err) = Selector::parse(&text) {
            prop_assert!((1..=text.chars().count() + 1).contains(&err.position), "{}", err);
        }
        let _ = (Name::parse(&text), Kind::parse(&text), text.parse::<Owner>());
    }
}
