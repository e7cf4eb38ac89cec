//! Reads the token counts that a provider reports: the only reader of `usage`.

use overmind_core::json;
use overmind_core::model::Usage;
use overmind_core::relay::Tally;
use serde_json::Value;

use crate::config::Format;

/// A bound above any real count, so that sums cannot overflow.
const MOST: u64 = 1 << 40;

/// The counts in a provider's `usage`. `None` if it is no object, if the input or output tokens are
/// no counts (`-5`, `12.5`, `"many"`), or if nothing was counted.
pub(crate) fn usage_of(format: Format, usage: &Value) -> Option<Usage> {
    usage.as_object()?;
    // A missing value is 0 at some paths only; every other value must be a count.
    let counted = |path: &str| match usage.pointer(path) {
        None | Some(Value::Null) => Some(0),
        Some(value) => json::count(value).map(|count| count.min(MOST)),
    };
    let detail = |path: &str| counted(path).unwrap_or(0);
    let usage = match format {
        Format::OpenAiChat => Usage {
            input_tokens: counted("/prompt_tokens")?,
            output_tokens: counted("/completion_tokens")?,
            // DeepSeek reports cache hits outside of the details.
            cached_input_tokens: detail("/prompt_tokens_details/cached_tokens")
                .max(detail("/prompt_cache_hit_tokens")),
            cache_write_tokens: detail("/prompt_tokens_details/cache_write_tokens"),
            reasoning_tokens: detail("/completion_tokens_details/reasoning_tokens"),
        },
        Format::OpenAiResponses => Usage {
            input_tokens: counted("/input_tokens")?,
            output_tokens: counted("/output_tokens")?,
            cached_input_tokens: detail("/input_tokens_details/cached_tokens"),
            cache_write_tokens: detail("/input_tokens_details/cache_write_tokens"),
            reasoning_tokens: detail("/output_tokens_details/reasoning_tokens"),
        },
        Format::AnthropicMessages => {
            let read = detail("/cache_read_input_tokens");
            let written = detail("/cache_creation_input_tokens");
            Usage {
                // Anthropic's count excludes cached tokens; ours includes them.
                input_tokens: counted("/input_tokens")? + read + written,
                output_tokens: counted("/output_tokens")?,
                cached_input_tokens: read,
                cache_write_tokens: written,
                reasoning_tokens: detail("/output_tokens_details/thinking_tokens"),
            }
        }
    };
    (usage.input_tokens + usage.output_tokens > 0).then_some(usage)
}

/// Merges usage that is reported twice: Anthropic reports the input at the beginning and may repeat
/// it at the end. Counts only grow.
pub(crate) fn later(before: Option<Usage>, told: Usage) -> Usage {
    let before = before.unwrap_or_default();
    Usage {
        input_tokens: told.input_tokens.max(before.input_tokens),
        output_tokens: told.output_tokens.max(before.output_tokens),
        cached_input_tokens: told.cached_input_tokens.max(before.cached_input_tokens),
        cache_write_tokens: told.cache_write_tokens.max(before.cache_write_tokens),
        reasoning_tokens: told.reasoning_tokens.max(before.reasoning_tokens),
    }
}

/// The usage that one reply's reader has collected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) usage: Option<Usage>,
    /// Whether these counts are final.
    pub(crate) is_final: bool,
}

impl Told {
    pub(crate) fn take(&mut self, format: Format, usage: &Value, is_last: bool) {
        if let Some(told) = usage_of(format, usage) {
            self.usage = Some(later(self.usage, told));
            self.is_final |= is_last;
        }
    }

    /// The usage to bill: the reported counts or, if they are missing, an estimate from what was
    /// sent and the bytes that were received.
    pub(crate) fn settled(self, prompt: impl Fn() -> u64, said_bytes: u64) -> Usage {
        let said = |usage: &Usage| usage.output_tokens > 0 || said_bytes == 0;
        let is_final = self.is_final && self.usage.as_ref().is_some_and(said);
        let prompt = if self.usage.is_none() { prompt() } else { 0 };
        Tally { usage: self.usage, is_final, said_bytes, ..Tally::default() }.settled(prompt)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_whole_numbers_count_as_usage() {
        let chat = |input: Value, output: Value| {
            let usage = json!({"prompt_tokens": input, "completion_tokens": output});
            usage_of(Format::OpenAiChat, &usage)
                .map(|usage| (usage.input_tokens, usage.output_tokens))
        };
        assert_eq!(chat(json!(1000.0), json!(5)), Some((1000, 5)));
        assert_eq!(chat(json!(3), Value::Null), Some((3, 0)));
        assert_eq!(chat(json!(u64::MAX), json!(1)), Some((1 << 40, 1)));
        for odd in [json!(-5), json!("many"), json!(12.5), json!([1])] {
            assert_eq!(chat(odd.clone(), json!(5)), None, "{odd}");
            assert_eq!(chat(json!(5), odd.clone()), None, "{odd}");
        }
        assert_eq!(chat(json!(0), json!(0)), None);
        let odd_detail =
            json!({"input_tokens": 9, "output_tokens": 1, "cache_read_input_tokens": "x"});
        let usage = usage_of(Format::AnthropicMessages, &odd_detail).unwrap();
        assert_eq!((usage.input_tokens, usage.cached_input_tokens), (9, 0));
        assert_eq!(usage_of(Format::OpenAiResponses, &json!("x")), None);
    }

    #[test]
    fn a_reply_without_usage_is_estimated() {
        let mut told = Told::default();
        assert_eq!(
            (told.settled(|| 70, 30).input_tokens, told.settled(|| 70, 30).output_tokens),
            (70, 10)
        );
        let start = json!({"input_tokens": 7, "output_tokens": 1});
        told.take(Format::AnthropicMessages, &start, false);
        told.take(Format::AnthropicMessages, &json!({"output_tokens": -5}), true);
        assert_eq!(
            (told.settled(|| 70, 30).input_tokens, told.settled(|| 70, 30).output_tokens),
            (7, 10)
        );
        told.take(Format::AnthropicMessages, &json!({"output_tokens": 4}), true);
        assert_eq!(told.settled(|| 70, 30).output_tokens, 4);
        let mut told = Told::default();
        told.take(Format::OpenAiChat, &json!({"prompt_tokens": 9, "completion_tokens": 0}), true);
        assert_eq!(
            (told.settled(|| 70, 0).output_tokens, told.settled(|| 70, 30).output_tokens),
            (0, 10)
        );
    }
}
