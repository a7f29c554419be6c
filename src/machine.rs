//! How much memory there is.

use std::{fs, path::Path};

/// The memory of the container, or else of the machine, in bytes; `None` where it can't be told.
///
/// Reads the limit of the control group (version 2, then 1) and `/proc/meminfo`, and takes the smaller.
/// Blocks for a few reads of files in memory.
pub fn total_memory() -> Option<u64> {
    let of_group = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];
    let of_group = of_group.into_iter().find_map(|path| read_number(Path::new(path)));
    let of_machine = fs::read_to_string("/proc/meminfo").ok().as_deref().and_then(mem_total);
    // Without a limit a group says a number near the largest there is, or a word.
    match (of_group, of_machine) {
        (Some(group), Some(machine)) => Some(group.min(machine)),
        (group, machine) => machine.or(group),
    }
}

fn read_number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn mem_total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_the_machine_is_read() {
        assert_eq!(mem_total("MemTotal:       24576000 kB\nMemFree: 1 kB\n"), Some(24_576_000 * 1024));
        assert_eq!(mem_total("MemFree: 1 kB\n"), None);
    }
}
