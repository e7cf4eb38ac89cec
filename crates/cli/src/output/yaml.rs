//! JSON values as YAML 1.2 block style.

pub use overmind_view::yaml::to_string;
