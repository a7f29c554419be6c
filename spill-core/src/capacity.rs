//! The contract of a capacity policy, which decides when memory must shrink and what an insert gets at the
//! limit, and the built-in one: [`FixedBudget`].

use std::{fmt, str::FromStr, time::Duration};

/// Where memory stands, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Levels {
    /// What entries may weigh together.
    pub limit: u64,
    /// What is taken: resident entries, those being spilled, and restores in flight.
    pub used: u64,
    /// The part of `used` that is on its way out already.
    pub leaving: u64,
}

/// What an insert or a restore gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It comes into memory at once.
    Now,
    /// It waits until others were spilled.
    AfterRoom,
    /// It can never be resident and goes straight to a tier.
    ToTier,
    /// It is refused.
    Refuse,
}

/// What an insert gets when there is no room in memory and no tier takes anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFull {
    /// Waits for room, first come first served. After this long the value comes back in the error.
    Wait(Duration),
    /// The value comes back in the error at once.
    Reject,
    /// It stays resident, above the limit. Drains by itself when room returns.
    Keep,
}

impl Default for OnFull {
    /// Waits for 30 seconds.
    fn default() -> Self {
        Self::Wait(Duration::from_secs(30))
    }
}

/// Decides when memory must shrink, how far, and what an insert gets.
///
/// A pure function of the levels it is shown (and of what it measures itself); called often, from any
/// thread, so it must be quick and must not call back into the buffer.
pub trait CapacityPolicy: fmt::Debug + Send + Sync + 'static {
    /// What an entry of weight `need` gets.
    fn admit(&self, levels: &Levels, need: u64) -> Admission;

    /// The bytes to spill down to, or `None` when nothing has to leave.
    fn spill_down_to(&self, levels: &Levels) -> Option<u64>;

    /// What an insert gets when no room can be made.
    fn on_full(&self) -> OnFull;
}

/// A fixed budget: nothing comes in above the limit; spilling starts in the background at a high watermark,
/// so that inserts rarely wait, and stops at a low one, so that batches are large.
///
/// ```
/// use spill_core::{Admission, CapacityPolicy, FixedBudget, Levels};
/// let budget = FixedBudget::default();
/// let levels = |used| Levels { limit: 1000, used, leaving: 0 };
/// assert_eq!(budget.spill_down_to(&levels(875)), None);
/// assert_eq!(budget.spill_down_to(&levels(876)), Some(750));
/// assert_eq!(budget.admit(&levels(900), 100), Admission::Now);
/// assert_eq!(budget.admit(&levels(900), 101), Admission::AfterRoom);
/// assert_eq!(budget.admit(&levels(0), 1001), Admission::ToTier);
///
/// let exact = FixedBudget::exact();
/// assert_eq!(exact.spill_down_to(&levels(1000)), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FixedBudget {
    high: Share,
    low: Share,
    on_full: OnFull,
}

impl Default for FixedBudget {
    /// Starts at 87.5 % and spills down to 75 %.
    fn default() -> Self {
        Self { high: Share(875), low: Share(750), on_full: OnFull::default() }
    }
}

impl FixedBudget {
    /// Both watermarks at the limit: one entry too many moves as few as possible, and nothing moves
    /// before. For tests and for small buffers of large values; batches are then small.
    pub fn exact() -> Self {
        Self { high: Share::WHOLE, low: Share::WHOLE, on_full: OnFull::default() }
    }

    /// The same with these watermarks: spilling starts above `high` and ends at `low`. A low watermark
    /// above the high one counts as equal to it.
    #[must_use]
    pub fn watermarks(mut self, high: Share, low: Share) -> Self {
        (self.high, self.low) = (high, low.min(high));
        self
    }

    /// The same with this answer when there is no room.
    #[must_use]
    pub fn when_full(mut self, on_full: OnFull) -> Self {
        self.on_full = on_full;
        self
    }
}

impl CapacityPolicy for FixedBudget {
    fn admit(&self, levels: &Levels, need: u64) -> Admission {
        if need > levels.limit {
            Admission::ToTier
        } else if levels.used.saturating_add(need) <= levels.limit {
            Admission::Now
        } else {
            Admission::AfterRoom
        }
    }

    fn spill_down_to(&self, levels: &Levels) -> Option<u64> {
        let staying = levels.used.saturating_sub(levels.leaving);
        (staying > self.high.of(levels.limit)).then(|| self.low.of(levels.limit))
    }

    fn on_full(&self) -> OnFull {
        self.on_full
    }
}

/// A share of something, in thousandths, from 0 to 1.
///
/// ```
/// use spill_core::Share;
/// assert_eq!("12.5%".parse::<Share>().unwrap().of(800), 100);
/// assert_eq!(Share::WHOLE.to_string(), "100%");
/// assert!("101%".parse::<Share>().is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Share(u16);

impl Share {
    /// All of it.
    pub const WHOLE: Self = Self(1000);

    /// This many thousandths; `None` above 1000.
    pub const fn thousandths(number: u16) -> Option<Self> {
        if number <= 1000 { Some(Self(number)) } else { None }
    }

    /// The share of `whole`, rounded down.
    pub fn of(self, whole: u64) -> u64 {
        // In parts, so that no whole is too large.
        let share = u64::from(self.0);
        whole / 1000 * share + whole % 1000 * share / 1000
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", f64::from(self.0) / 10.0)
    }
}

/// The text is not a percentage between 0% and 100%.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a percentage: write a number from 0 to 100 and a percent sign, like \"12.5%\"")]
pub struct ParseShareError;

impl FromStr for Share {
    type Err = ParseShareError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = text.trim().strip_suffix('%').ok_or(ParseShareError)?;
        let percent: f64 = number.trim().parse().map_err(|_| ParseShareError)?;
        if !(0.0..=100.0).contains(&percent) {
            return Err(ParseShareError);
        }
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0..=1000 fits")]
        let thousandths = (percent * 10.0).round() as u16;
        Ok(Self(thousandths))
    }
}
