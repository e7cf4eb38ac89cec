//! Durations as people write them: `500ms`, `5s`, `10m`, `1h30m`, `2d`. A bare number is seconds.

use std::time::Duration;

/// Microseconds of each unit; `ms` stands before `m`.
const UNITS: &[(&str, f64)] =
    &[("ms", 1e3), ("s", 1e6), ("m", 60e6), ("h", 3_600e6), ("d", 86_400e6)];
/// Longest duration, in seconds: some thirty years.
const MAX: f64 = 1e9;

/// Reads a duration of at most 10⁹ seconds.
///
/// # Errors
///
/// An error in the text, with the correct form.
pub fn parse(text: &str) -> Result<Duration, String> {
    let wrong = || {
        "give a duration such as 500ms, 5s, 10m, 1h30m or 2d; a bare number is seconds, at most \
         1000000000"
            .to_owned()
    };
    let (mut rest, mut micros) = (text, 0.0);
    while !rest.is_empty() || text.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, behind) = rest.split_at(digits);
        let number: f64 = number.parse().map_err(|_| wrong())?;
        if behind.is_empty() && rest.len() == text.len() {
            micros = number * 1e6;
            break;
        }
        let unit = UNITS.iter().find(|(unit, _)| behind.starts_with(unit)).ok_or_else(wrong)?;
        micros += number * unit.1;
        rest = &behind[unit.0.len()..];
    }
    if micros > MAX * 1e6 {
        return Err(wrong());
    }
    // Whole microseconds: 0.3 is not 0.299999.
    Ok(Duration::from_secs_f64(micros.round() / 1e6))
}

/// Seconds, with their part.
///
/// # Errors
///
/// See [`parse`].
pub fn seconds(text: &str) -> Result<f64, String> {
    parse(text).map(|span| span.as_secs_f64())
}

/// Whole seconds within bounds; a part of one counts as one.
pub fn whole<T: TryFrom<u64>>(
    least: u64,
    most: u64,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static {
    move |text| {
        let span = parse(text)?;
        let seconds = span.as_secs() + u64::from(span.subsec_nanos() > 0);
        let within = (least..=most).contains(&seconds);
        let bounds = || format!("give {least}s to {most}s");
        if within { T::try_from(seconds).map_err(|_| bounds()) } else { Err(bounds()) }
    }
}

/// Milliseconds, up to an hour.
///
/// # Errors
///
/// See [`parse`]; also accepts longer durations.
pub fn milliseconds(text: &str) -> Result<u32, String> {
    let span = parse(text)?;
    let fits = u32::try_from(span.as_millis()).ok().filter(|ms| *ms <= 3_600_000);
    fits.ok_or_else(|| "give at most 1h".to_owned())
}

/// The text, if it says its unit: where a bare number once was milliseconds, it is refused.
fn with_unit(text: &str) -> Result<&str, String> {
    match text.parse::<f64>() {
        Ok(number) if number != 0.0 => Err(format!("give the unit: {text}s or {text}ms?")),
        Ok(_) | Err(_) => Ok(text),
    }
}

/// See [`seconds`]. Bare numbers once were milliseconds in places: large ones are refused.
///
/// # Errors
///
/// See [`parse`]; refuses a number of 1000 or more without a unit.
pub fn patience(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number >= 1000.0 => seconds(with_unit(text)?),
        Ok(_) | Err(_) => seconds(text),
    }
}

/// See [`milliseconds`]; refuses a bare number.
///
/// # Errors
///
/// See [`milliseconds`]; refuses a number without a unit that is not 0.
pub fn milliseconds_with_unit(text: &str) -> Result<u32, String> {
    milliseconds(with_unit(text)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units_and_a_bare_number_is_seconds() {
        for (text, ms) in [
            ("500ms", 500),
            ("5s", 5_000),
            ("10m", 600_000),
            ("1h", 3_600_000),
            ("2d", 172_800_000),
            ("1h30m", 5_400_000),
            ("1.5s", 1_500),
            ("0", 0),
            ("500", 500_000),
            ("0.3", 300),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for bad in ["", "s", "5x", "-1", "1e9", "5 s", "1..2", "5s3", "NaN", "40000d", "µs"] {
            assert!(parse(bad).unwrap_err().contains("bare number is seconds"), "{bad}");
        }
    }

    #[test]
    fn a_bare_number_that_could_mean_milliseconds_is_refused() {
        assert_eq!(patience("5000"), Err("give the unit: 5000s or 5000ms?".to_owned()));
        assert_eq!(milliseconds_with_unit("5"), Err("give the unit: 5s or 5ms?".to_owned()));
        assert_eq!(patience("5s"), Ok(5.0));
        assert_eq!(milliseconds_with_unit("500ms"), Ok(500));
        assert_eq!((patience("0"), milliseconds_with_unit("0")), (Ok(0.0), Ok(0)));
    }

    #[test]
    fn whole_seconds_have_bounds() {
        let grace = whole::<u32>(0, 3600);
        assert_eq!(grace("1h"), Ok(3600));
        assert_eq!(grace("1ms"), Ok(1));
        assert_eq!(grace("2h"), Err("give 0s to 3600s".to_owned()));
        assert_eq!(milliseconds("1s"), Ok(1000));
        assert!(milliseconds("2h").is_err());
    }
}
