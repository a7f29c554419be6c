//! How a session in an object store is opened: [`ObjectOptions`]. What a session does is in `session`.

use std::{fmt, sync::Arc, time::Duration};

use object_store::{ObjectStore, path::Path};
use spill_core::{StoreError, StoreErrorKind};

use crate::{ObjectStoreBackend, session};

/// Heartbeats closer together would cost more than they tell.
const LEAST_HEARTBEAT: Duration = Duration::from_secs(1);

/// How many heartbeats a session has to miss before it may count as dead.
const LEAST_MISSED: u32 = 10;

/// The longest name of an owner, in bytes. A name in S3 has 1024 in all.
const LONGEST_OWNER: usize = 100;

/// Where a session is opened, and how it tells the living from the dead.
///
/// ```
/// use std::{sync::Arc, time::Duration};
/// use object_store::memory::InMemory;
/// use spill_backend_object::ObjectOptions;
///
/// let bucket = Arc::new(InMemory::new());
/// let options = ObjectOptions::new(bucket.clone(), "shared/prefix")
///     .owner("indexer")
///     .heartbeat(Duration::from_secs(30))
///     .dead_after(Some(Duration::from_secs(3600)));
/// let store = options.open()?;
///
/// let refused = ObjectOptions::new(bucket, "").dead_after(Some(Duration::from_secs(60))).open().unwrap_err();
/// assert!(refused.to_string().ends_with("raise it to 600s at least, or lower the heartbeat"), "{refused}");
/// # Ok::<(), spill_core::StoreError>(())
/// ```
#[derive(Clone)]
#[must_use = "nothing is opened before `open` is called"]
pub struct ObjectOptions {
    pub(crate) inner: Arc<dyn ObjectStore>,
    pub(crate) prefix: String,
    pub(crate) owner: Option<String>,
    pub(crate) heartbeat: Duration,
    pub(crate) dead_after: Option<Duration>,
    pub(crate) sorted: bool,
}

impl fmt::Debug for ObjectOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectOptions")
            .field("inner", &format_args!("{}", self.inner))
            .field("prefix", &self.prefix)
            .field("owner", &self.owner)
            .field("heartbeat", &self.heartbeat)
            .field("dead_after", &self.dead_after)
            .field("sorted", &self.sorted)
            .finish()
    }
}

impl ObjectOptions {
    /// How often a session shows that it lives, unless set: every minute.
    pub const HEARTBEAT: Duration = Duration::from_secs(60);

    /// When a session that shows no life counts as dead, unless set: after a day.
    pub const DEAD_AFTER: Duration = Duration::from_secs(24 * 3600);

    /// A session under `prefix` of this object store. The prefix may be empty, and may start and end with a
    /// slash.
    pub fn new(inner: Arc<dyn ObjectStore>, prefix: impl Into<String>) -> Self {
        Self {
            inner,
            prefix: prefix.into(),
            owner: None,
            heartbeat: Self::HEARTBEAT,
            dead_after: Some(Self::DEAD_AFTER),
            sorted: false,
        }
    }

    /// The name of those whose sessions belong together: a sweep looks at sessions of its own owner only.
    ///
    /// Up to 100 letters, digits, `.`, `_` and `-`. Unless set it is the name of the running executable,
    /// without what follows the last dot, and with `_` for every other character; `spill` where that can't be
    /// found out. Give it to programs that share a prefix and call themselves differently, and should clear
    /// away what the others left.
    pub fn owner(mut self, owner: impl Into<String>) -> Self {
        self.owner = Some(owner.into());
        self
    }

    /// How often the session shows that it lives, by one small write; 60 seconds unless set, one at least.
    pub fn heartbeat(mut self, every: Duration) -> Self {
        self.heartbeat = every;
        self
    }

    /// When a session of this owner that showed no life for so long counts as dead, and may be swept; 24 hours
    /// unless set, ten heartbeats at least. `None`: this session sweeps nothing.
    ///
    /// All programs of an owner should agree on it, and on the heartbeat: each sweeps by its own. A process that
    /// is stopped, or cut off from the service, for longer than this loses what it has spilled.
    pub fn dead_after(mut self, age: Option<Duration>) -> Self {
        self.dead_after = age;
        self
    }

    /// Whether the service lists names in ascending order (S3, GCS, Azure and `InMemory` do), from the one
    /// asked for. A page of a listing then ends with its last name; otherwise each page reads all names of the
    /// session that follow, which is right everywhere, and what is done unless set.
    pub fn sorted(mut self, sorted: bool) -> Self {
        self.sorted = sorted;
        self
    }

    /// Opens a session with a name of its own. No request is made.
    ///
    /// # Errors
    /// `Other`, with the target, when the prefix is no path (it has an empty, `.` or `..` segment, or a control
    /// character), the owner no name, the heartbeat too short, or `dead_after` shorter than ten heartbeats.
    pub fn open(self) -> Result<ObjectStoreBackend, StoreError> {
        ObjectStoreBackend::open(self)
    }

    /// `prefix/<owner>`.
    pub(crate) fn root(&self) -> Result<Path, StoreError> {
        let prefix = Path::parse(&self.prefix).map_err(|error| self.refused(error.to_string()))?;
        let owner = match &self.owner {
            Some(owner) if is_owner(owner) => owner.clone(),
            Some(owner) => {
                return Err(self.refused(format!(
                    "owner {owner:?}: write up to {LONGEST_OWNER} letters, digits, `.`, `_` and `-`"
                )));
            }
            None => default_owner(),
        };
        Ok(prefix.join(owner))
    }

    pub(crate) fn check_times(&self) -> Result<(), StoreError> {
        let (heartbeat, least) = (self.heartbeat, self.heartbeat.saturating_mul(LEAST_MISSED));
        if heartbeat < LEAST_HEARTBEAT {
            return Err(self.refused(format!("heartbeat of {heartbeat:?}: raise it to {LEAST_HEARTBEAT:?}")));
        }
        match self.dead_after {
            Some(age) if age < least => Err(self.refused(format!(
                "dead after {age:?}, with a heartbeat every {heartbeat:?}: raise it to {least:?} at least, or \
                 lower the heartbeat"
            ))),
            _ => Ok(()),
        }
    }

    fn refused(&self, message: String) -> StoreError {
        StoreError::new(StoreErrorKind::Other, "open", format!("{}/{}", self.inner, self.prefix))
            .with_source(message)
    }
}

fn is_owner(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=LONGEST_OWNER).contains(&name.len()) && ![".", ".."].contains(&name) && name.bytes().all(plain)
}

fn default_owner() -> String {
    let executable = std::env::current_exe().ok();
    let stem = executable.as_deref().and_then(std::path::Path::file_stem);
    stem.map_or_else(|| clean(""), |stem| clean(&stem.to_string_lossy()))
}

/// The name of an owner that is nearest to this one.
fn clean(name: &str) -> String {
    // What Linux says of an executable that was replaced while it runs.
    let name = name.strip_suffix(" (deleted)").unwrap_or(name);
    let plain = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' };
    let name: String = name.chars().map(plain).take(LONGEST_OWNER).collect();
    if is_owner(&name) { name } else { session::NAMELESS.to_owned() }
}

#[cfg(test)]
mod tests {
    use object_store::memory::InMemory;

    use super::*;

    fn options() -> ObjectOptions {
        ObjectOptions::new(Arc::new(InMemory::new()), "/some/prefix/")
    }

    #[test]
    fn names_of_executables_become_owners() {
        for (name, owner) in [
            ("app", "app"),
            ("my app (deleted)", "my_app"),
            ("a/../b", "a_.._b"),
            ("größe", "gr__e"),
            ("..", "spill"),
            ("", "spill"),
        ] {
            assert_eq!(clean(name), owner, "{name:?}");
        }
        assert_eq!(clean(&"x".repeat(300)).len(), LONGEST_OWNER);
        assert!(is_owner(&default_owner()));
    }

    #[test]
    fn what_can_not_work_is_refused_with_the_fix() {
        let seconds = Duration::from_secs;
        let message = |options: ObjectOptions| options.open().unwrap_err().to_string();
        for owner in ["", ".", "..", "a/b", "a b", "ä", &"x".repeat(101)] {
            let message = message(options().owner(owner));
            assert!(message.contains(&format!("owner {owner:?}: write up to 100 letters")), "{message}");
        }
        let short = message(options().heartbeat(Duration::from_millis(999)));
        assert!(short.ends_with("heartbeat of 999ms: raise it to 1s"), "{short}");
        let near = message(options().heartbeat(seconds(7)).dead_after(Some(seconds(69))));
        assert!(
            near.contains("InMemory//some/prefix/") && near.contains("raise it to 70s at least"),
            "{near}"
        );
        options().heartbeat(seconds(7)).dead_after(Some(seconds(70))).open().unwrap();
        options().heartbeat(Duration::MAX).dead_after(None).open().unwrap();
    }
}
