//! The memory of this process, as the system sees it.

use std::{env, fs};

/// What tells glibc how many arenas to spread allocations over.
const ARENAS: &str = "MALLOC_ARENA_MAX";

/// Starts the program again with one arena for all allocations, unless a number is set.
///
/// glibc gives threads arenas of their own, and what is freed in one is of no use to the others: values come
/// in on one thread and are restored on others, so the process keeps about twice what the buffer holds.
/// That is a matter of the allocator and not of the buffer, whose memory is to be measured here.
pub(crate) fn with_one_arena() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    if env::var_os(ARENAS).is_none()
        && let Ok(program) = env::current_exe()
    {
        use std::os::unix::process::CommandExt;
        let mut again = std::process::Command::new(program);
        // Returns only when it failed; then the run goes on as it is.
        drop(again.args(env::args_os().skip(1)).env(ARENAS, "1").exec());
    }
}

/// How many arenas were asked for; `None`: as many as the allocator likes.
pub(crate) fn arenas() -> Option<String> {
    env::var(ARENAS).ok()
}

/// Bytes of memory the process has in use now. `None` where the system does not say.
pub(crate) fn resident() -> Option<u64> {
    status("VmRSS:")
}

/// The most it ever had in use, or since [`reset_peak`].
pub(crate) fn peak() -> Option<u64> {
    status("VmHWM:")
}

/// Lets the peak start again from what is in use now. Where that is not allowed the peak is one of the whole
/// run, which is never less.
pub(crate) fn reset_peak() {
    drop(fs::write("/proc/self/clear_refs", "5"));
}

fn status(name: &str) -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let kib = status.lines().find_map(|line| line.strip_prefix(name))?;
    kib.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1024)
}
