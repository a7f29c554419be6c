//! Reads one value, whoever wrote it.

use std::{borrow::Cow, ops::RangeInclusive, time::Duration};

use toml::de::{DeInteger, DeValue};

use super::{Amount, Compression, ParseCompressionError, StoreUrl, format_bytes_exactly, store_url::redact};
use crate::{Share, parse_bytes};

/// A value as somebody wrote it.
pub(super) enum Written<'a> {
    /// A TOML string.
    Text(&'a str),
    /// An environment variable: stands for any type.
    Variable(&'a str),
    /// A TOML integer, and how it was written.
    Integer(Option<i128>, String),
    /// A TOML float.
    Float(&'a str),
    /// A TOML boolean.
    Switch(bool),
    /// A TOML value that no key takes; says which.
    Other(&'static str),
}

/// Why a value is not accepted, and the fix if there is a better one than the example.
#[derive(Debug)]
pub(super) struct Wrong {
    pub(super) problem: Cow<'static, str>,
    pub(super) fix: Option<String>,
}

impl Wrong {
    pub(super) fn new(problem: impl Into<Cow<'static, str>>) -> Self {
        Self { problem: problem.into(), fix: None }
    }

    pub(super) fn with_fix(mut self, fix: impl Into<String>) -> Self {
        self.fix = Some(fix.into());
        self
    }
}

impl<'a> Written<'a> {
    pub(super) fn of(value: &'a DeValue<'_>) -> Self {
        match value {
            DeValue::String(text) => Self::Text(text),
            DeValue::Integer(number) => Self::Integer(integer(number), number.to_string()),
            DeValue::Float(number) => Self::Float(number.as_str()),
            DeValue::Boolean(switch) => Self::Switch(*switch),
            DeValue::Datetime(_) => Self::Other("a date"),
            DeValue::Array(_) => Self::Other("an array"),
            DeValue::Table(_) => Self::Other("a table"),
        }
    }

    /// For messages: as written, but not without end, and without what looks like a user or password.
    pub(super) fn shown(&self) -> String {
        match self {
            Self::Text(text) | Self::Variable(text) => quoted(&redact(text)),
            Self::Integer(_, text) => shortened(text),
            Self::Float(text) => shortened(text),
            Self::Switch(switch) => switch.to_string(),
            Self::Other(what) => format!("({what})"),
        }
    }

    /// What it is, for a message that says it should be something else.
    fn kind(&self) -> &'static str {
        match self {
            Self::Text(_) | Self::Variable(_) => "a string",
            Self::Integer(..) => "a number",
            Self::Float(_) => "a number with a fraction",
            Self::Switch(_) => "a boolean",
            Self::Other(what) => what,
        }
    }

    fn text(&self, wanted: &str) -> Result<&'a str, Wrong> {
        match self {
            Self::Text(text) | Self::Variable(text) if text.trim().is_empty() => {
                Err(Wrong::new("it is empty"))
            }
            Self::Text(text) | Self::Variable(text) => Ok(text.trim()),
            _ => Err(self.mistyped(wanted)),
        }
    }

    fn mistyped(&self, wanted: &str) -> Wrong {
        Wrong::new(format!("{} where {wanted} belongs", self.kind()))
    }
}

fn integer(number: &DeInteger<'_>) -> Option<i128> {
    i128::from_str_radix(number.as_str(), number.radix()).ok()
}

pub(super) fn quoted(text: &str) -> String {
    format!("{:?}", shortened(text))
}

fn shortened(text: &str) -> String {
    const MOST: usize = 80;
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// The largest size that is not absurd: 1 EiB.
pub(super) const MAX_BYTES: u64 = 1 << 60;

pub(super) fn bytes(written: &Written<'_>, within: &RangeInclusive<u64>) -> Result<u64, Wrong> {
    let number = match written {
        Written::Integer(number, _) => match number {
            Some(number) if *number < 0 => return Err(Wrong::new("a size can't be negative")),
            Some(number) => u64::try_from(*number).unwrap_or(u64::MAX),
            None => u64::MAX,
        },
        Written::Text(_) | Written::Variable(_) => {
            let text = written.text("a size")?;
            if text.starts_with('-') {
                return Err(Wrong::new("a size can't be negative"));
            }
            if text.ends_with('%') {
                return Err(Wrong::new("a percentage where a number of bytes belongs"));
            }
            parse_bytes(text).map_err(|_| {
                Wrong::new("not a number of bytes (units are B, kB, MB, GB, TB, KiB, MiB, GiB, TiB)")
            })?
        }
        _ => return Err(written.mistyped("a number of bytes")),
    };
    check_bytes(number, within)?;
    Ok(number)
}

pub(super) fn check_bytes(number: u64, within: &RangeInclusive<u64>) -> Result<(), Wrong> {
    match number {
        number if number < *within.start() => Err(Wrong::new("too small")),
        number if number > *within.end() => Err(Wrong::new("too large")),
        _ => Ok(()),
    }
}

pub(super) fn share(written: &Written<'_>) -> Result<Share, Wrong> {
    match written {
        Written::Text(_) | Written::Variable(_) => {
            written.text("a percentage")?.parse().map_err(|_| Wrong::new("not a percentage from 0% to 100%"))
        }
        _ => Err(written.mistyped("a percentage in quotes")),
    }
}

pub(super) fn amount(written: &Written<'_>) -> Result<Amount, Wrong> {
    match written {
        Written::Text(text) | Written::Variable(text) if text.trim_end().ends_with('%') => {
            share(written).map(Amount::Share)
        }
        _ => bytes(written, &(0..=MAX_BYTES)).map(Amount::Bytes),
    }
}

pub(super) fn time(written: &Written<'_>, within: &RangeInclusive<Duration>) -> Result<Duration, Wrong> {
    let text = match written {
        Written::Integer(_, number) => {
            let fix = format!("say which unit: \"{number}s\" for seconds");
            return Err(Wrong::new("a duration has no unit").with_fix(fix));
        }
        _ => written.text("a duration in quotes")?,
    };
    if text.starts_with('-') {
        return Err(Wrong::new("a duration can't be negative"));
    }
    let time = humantime::parse_duration(text)
        .map_err(|_| Wrong::new("not a duration (units are ms, s, m, h, days)"))?;
    check_time(time, within)?;
    Ok(time)
}

pub(super) fn check_time(time: Duration, within: &RangeInclusive<Duration>) -> Result<(), Wrong> {
    match time {
        Duration::ZERO => Err(Wrong::new("no time at all")),
        time if time < *within.start() => Err(Wrong::new("too short")),
        time if time > *within.end() => Err(Wrong::new("too long")),
        _ => Ok(()),
    }
}

pub(super) fn count(written: &Written<'_>, within: &RangeInclusive<u32>) -> Result<u32, Wrong> {
    let number = match written {
        Written::Integer(number, _) => *number,
        Written::Variable(_) => Some(
            written.text("a whole number")?.parse::<i128>().map_err(|_| Wrong::new("not a whole number"))?,
        ),
        _ => return Err(written.mistyped("a whole number")),
    };
    match number {
        Some(number) if number < 0 => Err(Wrong::new("it can't be negative")),
        Some(number) => {
            let number = u32::try_from(number).unwrap_or(u32::MAX);
            check_count(number, within).map(|()| number)
        }
        None => Err(Wrong::new("too many")),
    }
}

pub(super) fn check_count(number: u32, within: &RangeInclusive<u32>) -> Result<(), Wrong> {
    match number {
        number if number < *within.start() => Err(Wrong::new("too few")),
        number if number > *within.end() => Err(Wrong::new("too many")),
        _ => Ok(()),
    }
}

pub(super) fn switch(written: &Written<'_>) -> Result<bool, Wrong> {
    match written {
        Written::Switch(switch) => Ok(*switch),
        Written::Variable(text) => text.trim().parse().map_err(|_| Wrong::new("neither true nor false")),
        Written::Text(_) => Err(Wrong::new("a string where true or false belongs, without quotes")),
        _ => Err(written.mistyped("true or false")),
    }
}

pub(super) fn word(written: &Written<'_>, words: &[&'static str]) -> Result<&'static str, Wrong> {
    let text = written.text("a word in quotes")?;
    if let Some(word) = words.iter().find(|word| **word == text) {
        return Ok(word);
    }
    let wrong = Wrong::new("not one of them");
    Err(match super::nearest(text, words.iter().copied()) {
        Some(near) => wrong.with_fix(format!("did you mean {near:?}?")),
        None => wrong,
    })
}

pub(super) fn name(written: &Written<'_>) -> Result<String, Wrong> {
    let text = written.text("a name in quotes")?;
    check_name(text).map(|()| text.to_owned())
}

/// Names end up in log lines and metrics.
pub(super) fn check_name(text: &str) -> Result<(), Wrong> {
    match text {
        "" => Err(Wrong::new("it is empty")),
        text if text.chars().count() > 64 => Err(Wrong::new("too long")),
        text if text.chars().any(char::is_control) => Err(Wrong::new("it has a control character in it")),
        _ => Ok(()),
    }
}

pub(super) fn store(written: &Written<'_>) -> Result<StoreUrl, Wrong> {
    let text = match written {
        Written::Text(text) | Written::Variable(text) => *text,
        _ => return Err(written.mistyped("a URL in quotes")),
    };
    text.parse::<StoreUrl>().map_err(|error| Wrong::new(error.problem).with_fix(error.fix))
}

pub(super) fn compression(written: &Written<'_>) -> Result<Compression, Wrong> {
    let text = written.text("the name of a compressor in quotes")?;
    text.parse().map_err(|error: ParseCompressionError| {
        let wrong = Wrong::new(error.to_string());
        match error {
            ParseCompressionError::Name => wrong,
            _ => {
                let name = text.split(':').next().unwrap_or(text);
                wrong.with_fix(format!("write \"{name}\""))
            }
        }
    })
}

/// The value of an option: stores take strings, and parse them as they like.
pub(super) fn option(written: &Written<'_>) -> Result<String, Wrong> {
    match written {
        Written::Text(text) | Written::Variable(text) => Ok((*text).to_owned()),
        Written::Integer(_, text) => Ok(text.clone()),
        Written::Float(text) => Ok((*text).to_owned()),
        Written::Switch(switch) => Ok(switch.to_string()),
        Written::Other(_) => Err(written.mistyped("a string, a number, true or false")),
    }
}

pub(super) fn show_bytes(number: u64) -> String {
    format!("\"{}\"", format_bytes_exactly(number))
}

pub(super) fn show_time(time: Duration) -> String {
    format!("\"{}\"", humantime::format_duration(time))
}
