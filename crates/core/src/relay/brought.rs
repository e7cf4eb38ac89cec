//! References in a body to content that the provider fetches or looks up. Its tokens have no bytes
//! in the body.

use std::fmt;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

/// Maximum number of tokens of an image that the provider fetches.
const IMAGE_TOKENS: u64 = 50_000;
/// Maximum number of tokens of a reference to content that the provider stores.
pub(super) const KEPT_TOKENS: u64 = 1_000_000;

/// Numbers of references in a body to outside content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Brought {
    /// Images and files that are given by a URL.
    pub(super) fetched: u64,
    /// Files that the provider stores.
    pub(super) kept: u64,
}

impl Brought {
    /// Counts the references in a JSON document. A value that only looks like a reference (a
    /// `$schema`, a tool parameter named `file_id`) has another type and is not counted.
    pub(super) fn of(text: &str) -> serde_json::Result<Self> {
        let mut brought = Self::default();
        let mut document = serde_json::Deserializer::from_str(text);
        Look { brought: &mut brought, key: Key::Other }.deserialize(&mut document)?;
        Ok(brought)
    }

    /// Returns the most tokens of all references together.
    pub(super) fn most(self) -> u64 {
        let kept = self.kept.saturating_mul(KEPT_TOKENS);
        kept.saturating_add(self.fetched.saturating_mul(IMAGE_TOKENS))
    }
}

/// The meaning of a key for a text value, in the formats of all providers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Key {
    Url,
    File,
    Other,
}

impl Key {
    fn of(name: &str) -> Self {
        match name {
            "url" | "image_url" | "file_url" | "file_uri" | "fileUri" => Self::Url,
            "file_id" | "fileId" => Self::File,
            _ => Self::Other,
        }
    }
}

struct Look<'a> {
    brought: &'a mut Brought,
    key: Key,
}

impl<'de> DeserializeSeed<'de> for Look<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Look<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_str<E>(self, text: &str) -> Result<(), E> {
        let begins = |scheme: &str| {
            text.get(..scheme.len()).is_some_and(|begins| begins.eq_ignore_ascii_case(scheme))
        };
        match self.key {
            Key::Url if !begins("data:") => self.brought.fetched += 1,
            Key::File => self.brought.kept += 1,
            Key::Url | Key::Other => {}
        }
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while seq.next_element_seed(Look { brought: self.brought, key: self.key })?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(Name(key)) = map.next_key()? {
            map.next_value_seed(Look { brought: self.brought, key })?;
        }
        Ok(())
    }
}

/// The key of a field, with any escapes decoded.
struct Name(Key);

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Name;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a name")
            }

            fn visit_str<E>(self, text: &str) -> Result<Name, E> {
                Ok(Name(Key::of(text)))
            }
        }
        deserializer.deserialize_identifier(Text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn brought(text: &str) -> (u64, u64) {
        let Brought { fetched, kept } = Brought::of(text).unwrap();
        (fetched, kept)
    }

    #[test]
    fn references_are_counted_in_every_spelling() {
        for (text, wanted) in [
            (r#"{"source":{"type":"url","url":"https://a/b"}}"#, (1, 0)),
            (r#"[{"image_url":{"url":"http://a"}},{"image_url":"HTTPS://b"}]"#, (2, 0)),
            (r#"{"u\u0072l":"\u0068ttps://a","file_url":"gs://x"}"#, (2, 0)),
            (r#"{"type":"input_file","file_id":"file-1","x":{"fileId":"2"}}"#, (0, 2)),
            (r#"{"url":["https://a","https://b"]}"#, (2, 0)),
        ] {
            assert_eq!(brought(text), wanted, "{text}");
        }
    }

    #[test]
    fn text_that_resembles_a_reference_is_not_counted() {
        for text in [
            r#"{"$schema":"https://json-schema.org/draft/2020-12/schema"}"#,
            r#"{"properties":{"file_id":{"type":"string"},"url":{"type":"string"}},"required":["file_id"]}"#,
            r#"{"text":"see https://a.example and \"file_id\""}"#,
            r#"{"image_url":"data:image/png;base64,aGk="}"#,
            r#"{"url":null,"file_id":1,"a":[true,-1,2.5]}"#,
        ] {
            assert_eq!(brought(text), (0, 0), "{text}");
        }
    }
}
