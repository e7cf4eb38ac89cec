//! The values of `--output`.

use std::ffi::OsStr;

use clap::ValueEnum;
use clap::builder::{EnumValueParser, PossibleValue, TypedValueParser};

use crate::args::Format;
use crate::output::jsonpath::Template;

/// The value of `--output`: a format, or JSON through a template.
#[derive(Clone, Debug)]
pub struct Shape {
    pub format: Format,
    pub template: Option<Template>,
}

impl From<Format> for Shape {
    fn from(format: Format) -> Self {
        Self { format, template: None }
    }
}

/// Reads a [`Shape`].
#[derive(Clone, Debug)]
pub struct ShapeParser;

impl TypedValueParser for ShapeParser {
    type Value = Shape;

    fn parse_ref(
        &self,
        cmd: &clap::Command,
        arg: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<Shape, clap::Error> {
        let Some(text) = value.to_str().and_then(|text| text.strip_prefix("jsonpath=")) else {
            return EnumValueParser::<Format>::new().parse_ref(cmd, arg, value).map(Shape::from);
        };
        let template = Template::parse(text).map_err(|err| {
            clap::Error::raw(clap::error::ErrorKind::ValueValidation, format!("jsonpath: {err}\n"))
                .with_cmd(cmd)
        })?;
        Ok(Shape { format: Format::Json, template: Some(template) })
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let formats = Format::value_variants().iter().filter_map(ValueEnum::to_possible_value);
        let template = PossibleValue::new("jsonpath=TEMPLATE");
        Some(Box::new(formats.chain(std::iter::once(template))))
    }
}
