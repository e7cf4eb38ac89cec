//! Values that refer to a session's own resources: `postgres://${db.host}:${db.port}/app`.
//!
//! `${service.field}` is replaced by a value and `$$` by a dollar sign; a dollar sign before
//! anything else is literal. A reference to a missing field is an error that lists the existing
//! ones, and never an empty text: an application with an empty database address tends to find
//! another one.

use std::collections::BTreeMap;
use std::fmt;

/// A parsed text with references.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    source: String,
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Reference { service: String, field: String },
}

/// The values for references: by service, then by field.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Values(BTreeMap<String, BTreeMap<String, String>>);

/// Why a template is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    #[error("`${{` at character {at} is never closed: write `$$` for a dollar sign")]
    Open { at: usize },
    #[error(
        "`${{{text}}}` is not a reference: write `${{service.field}}`, or `$${{{text}}}` for the text \
         itself"
    )]
    NotAReference { text: String },
    #[error("`${{{service}.{field}}}`: there is no service `{service}`; there {there}")]
    NoService { service: String, field: String, there: String },
    #[error("`${{{service}.{field}}}`: `{service}` has no `{field}`; it has {there}")]
    NoField { service: String, field: String, there: String },
}

impl Values {
    pub fn set(&mut self, service: &str, field: &str, value: impl Into<String>) {
        let fields = self.0.entry(service.to_owned()).or_default();
        fields.insert(field.to_owned(), value.into());
    }

    pub fn get(&self, service: &str, field: &str) -> Option<&str> {
        self.0.get(service)?.get(field).map(String::as_str)
    }

    /// Every field of `service`, by name; none if there is no such service.
    pub fn fields(&self, service: &str) -> impl Iterator<Item = (&str, &str)> {
        let fields = self.0.get(service).into_iter().flatten();
        fields.map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Adds the values of `other`, which take precedence.
    pub fn extend(&mut self, other: &Self) {
        for (service, fields) in &other.0 {
            for (field, value) in fields {
                self.set(service, field, value.clone());
            }
        }
    }

    pub(crate) fn all(&self) -> &BTreeMap<String, BTreeMap<String, String>> {
        &self.0
    }

    /// These values as a service sees them: `self` refers to the service.
    pub(crate) fn seen_by(&self, service: &str) -> Self {
        let mut seen = self.clone();
        if let Some(own) = self.0.get(service) {
            seen.0.insert("self".to_owned(), own.clone());
        }
        seen
    }

    fn refuse(&self, service: &str, field: &str) -> TemplateError {
        let (service, field) = (service.to_owned(), field.to_owned());
        match self.0.get(&service) {
            Some(fields) => {
                let there = listed(fields.keys());
                TemplateError::NoField { service, field, there }
            }
            None if self.0.is_empty() => {
                TemplateError::NoService { service, field, there: "is none".to_owned() }
            }
            None => {
                let there = format!("are {}", listed(self.0.keys()));
                TemplateError::NoService { service, field, there }
            }
        }
    }
}

fn listed<'a>(names: impl Iterator<Item = &'a String>) -> String {
    let names: Vec<String> = names.map(|name| format!("`{name}`")).collect();
    names.join(", ")
}

impl Template {
    /// Parses `source`.
    ///
    /// # Errors
    ///
    /// [`TemplateError::Open`] and [`TemplateError::NotAReference`].
    pub fn parse(source: &str) -> Result<Self, TemplateError> {
        let mut parts = Vec::new();
        let mut text = String::new();
        let mut rest = source;
        while let Some(dollar) = rest.find('$') {
            text.push_str(&rest[..dollar]);
            let after = &rest[dollar + 1..];
            if let Some(after) = after.strip_prefix('$') {
                text.push('$');
                rest = after;
                continue;
            }
            let Some(inside) = after.strip_prefix('{') else {
                text.push('$');
                rest = after;
                continue;
            };
            let Some(end) = inside.find('}') else {
                let at = source.len() - rest.len() + dollar;
                return Err(TemplateError::Open { at: source[..at].chars().count() + 1 });
            };
            let (name, after) = (&inside[..end], &inside[end + 1..]);
            let reference = name.split_once('.').filter(|(a, b)| is_name(a) && is_name(b));
            let Some((service, field)) = reference else {
                return Err(TemplateError::NotAReference { text: name.to_owned() });
            };
            if !text.is_empty() {
                parts.push(Part::Text(std::mem::take(&mut text)));
            }
            parts.push(Part::Reference { service: service.to_owned(), field: field.to_owned() });
            rest = after;
        }
        text.push_str(rest);
        if !text.is_empty() {
            parts.push(Part::Text(text));
        }
        Ok(Self { source: source.to_owned(), parts })
    }

    /// The text with every reference replaced.
    ///
    /// # Errors
    ///
    /// [`TemplateError::NoService`] and [`TemplateError::NoField`] list the existing names.
    pub fn render(&self, values: &Values) -> Result<String, TemplateError> {
        let mut out = String::new();
        for part in &self.parts {
            match part {
                Part::Text(text) => out.push_str(text),
                Part::Reference { service, field } => match values.get(service, field) {
                    Some(value) => out.push_str(value),
                    None => return Err(values.refuse(service, field)),
                },
            }
        }
        Ok(out)
    }

    /// The service and the field of each reference.
    pub fn references(&self) -> impl Iterator<Item = (&str, &str)> {
        self.parts.iter().filter_map(|part| match part {
            Part::Text(_) => None,
            Part::Reference { service, field } => Some((service.as_str(), field.as_str())),
        })
    }

    /// Whether every referenced service already has values.
    pub(crate) fn is_answered_by(&self, values: &Values) -> bool {
        self.references().all(|(service, _)| values.0.contains_key(service))
    }
}

impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.source)
    }
}

/// Whether `text` may name a service or a field.
pub(crate) fn is_name(text: &str) -> bool {
    let mut chars = text.chars();
    chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-')
        && text.len() <= 63
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values() -> Values {
        let mut values = Values::default();
        values.set("db", "port", "20001");
        values.set("db", "name", "app");
        values
    }

    fn rendered(source: &str) -> Result<String, TemplateError> {
        Template::parse(source)?.render(&values())
    }

    #[test]
    fn references_are_replaced_and_double_dollars_become_one() {
        assert_eq!(
            rendered("postgres://u@h:${db.port}/${db.name}").unwrap(),
            "postgres://u@h:20001/app"
        );
        assert_eq!(rendered("$${db.port} costs $5, a$b$").unwrap(), "${db.port} costs $5, a$b$");
        assert_eq!(rendered("").unwrap(), "");
        assert_eq!(rendered("${db.name}${db.name}").unwrap(), "appapp");
    }

    #[test]
    fn a_substituted_value_is_not_expanded_again() {
        let mut values = values();
        values.set("db", "password", "${db.port}$$");
        let template = Template::parse("${db.password}").unwrap();
        assert_eq!(template.render(&values).unwrap(), "${db.port}$$");
    }

    #[test]
    fn an_unknown_reference_is_refused_with_the_known_ones() {
        let no_service = rendered("${cache.port}").unwrap_err().to_string();
        assert_eq!(no_service, "`${cache.port}`: there is no service `cache`; there are `db`");
        let no_field = rendered("${db.prot}").unwrap_err().to_string();
        assert_eq!(no_field, "`${db.prot}`: `db` has no `prot`; it has `name`, `port`");
    }

    #[test]
    fn invalid_references_are_refused_and_not_stored() {
        assert!(matches!(rendered("${HOME}"), Err(TemplateError::NotAReference { .. })));
        assert!(matches!(rendered("${db.}"), Err(TemplateError::NotAReference { .. })));
        assert!(matches!(rendered("${db.port.x}"), Err(TemplateError::NotAReference { .. })));
        assert_eq!(rendered("ä${db.port"), Err(TemplateError::Open { at: 2 }));
    }

    #[test]
    fn a_service_may_refer_to_itself() {
        let template = Template::parse("--port=${self.port}").unwrap();
        assert_eq!(template.render(&values().seen_by("db")).unwrap(), "--port=20001");
        assert!(template.render(&values()).is_err());
    }
}
