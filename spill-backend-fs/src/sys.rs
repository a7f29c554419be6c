//! The system calls a store makes, and what their errors mean.
//!
//! Everything is done relative to an open directory, so that a directory that is renamed or replaced under
//! our feet can't lead us elsewhere. [`Sys`] is the seam at which tests record calls and let them fail; the
//! crate shows it to its own integration tests only.

use std::{
    ffi::CStr,
    fmt,
    fs::File,
    io::{self, IoSlice, IoSliceMut, Write},
    os::unix::fs::MetadataExt,
};

use rustix::{
    fs::{AtFlags, Dir, FileType, Mode, OFlags},
    io::{Errno, retry_on_intr},
};
use spill_core::{BlobId, StoreErrorKind};

use crate::files::DirectFile;

/// Of these, `st_blocks` counts.
pub(crate) const BLOCK: u64 = 512;

/// The calls that make up the operations on blobs. Each does what the system does unless a test says other.
pub trait Sys: fmt::Debug + Send + Sync + 'static {
    /// Makes a file for its owner alone; fails when there is one.
    fn create(&self, directory: &File, name: &str) -> io::Result<File> {
        open(directory, name, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL)
    }

    /// Writes at the end of what was written; says how much of `slices` that was.
    fn write(&self, mut file: &File, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        file.write_vectored(slices)
    }

    /// Lets writes of a file go past the page cache from now on, or through it again.
    fn set_direct(&self, file: &File, direct: bool) -> io::Result<()> {
        set_direct(file, direct)
    }

    /// Brings a file's bytes and length to the disk.
    fn sync_file(&self, file: &File) -> io::Result<()> {
        file.sync_data()
    }

    /// Gives a file its final name.
    fn publish(&self, directory: &File, from: &str, to: &str) -> io::Result<()> {
        Ok(retry_on_intr(|| rustix::fs::renameat(directory, from, directory, to))?)
    }

    /// Brings a directory's names to the disk.
    fn sync_directory(&self, directory: &File) -> io::Result<()> {
        directory.sync_all()
    }

    /// Removes a file.
    fn unlink(&self, directory: &File, name: &str) -> io::Result<()> {
        unlink(directory, name)
    }

    /// Opens a file for reading.
    fn open(&self, directory: &File, name: &str) -> io::Result<File> {
        open(directory, name, OFlags::RDONLY)
    }

    /// The same, if the disk is not needed for that. A system that does not know that always fails.
    fn open_cached(&self, _directory: &File, _name: &str) -> io::Result<File> {
        Err(Errno::AGAIN.into())
    }

    /// Appends bytes of a file, from `offset` on, to `buffer`, within its capacity; says how many.
    fn read(&self, file: &File, buffer: &mut Vec<u8>, offset: u64) -> io::Result<usize> {
        let spare = rustix::buffer::spare_capacity(buffer);
        Ok(rustix::io::pread(file, spare, offset)?)
    }

    /// Whether all of a range is in the page cache. A system that does not know that always fails.
    fn is_cached(&self, _file: &File, _offset: u64, _length: u64) -> io::Result<bool> {
        Err(Errno::NOSYS.into())
    }

    /// Reads as much of `buffer` as is in the page cache, from `offset` on, without waiting for the disk.
    fn read_cached(&self, file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        read_cached(file, buffer, offset)
    }

    /// Calls `visit` with each name in a directory.
    fn names(&self, directory: &File, visit: &mut dyn FnMut(&str)) -> io::Result<()> {
        for_each_name(directory, visit)
    }

    /// The size of the file system, and what of it is free for this user.
    fn space(&self, directory: &File) -> io::Result<Space> {
        let space = retry_on_intr(|| rustix::fs::fstatvfs(directory))?;
        let bytes = |blocks: u64| blocks.saturating_mul(space.f_frsize);
        Ok(Space { size: bytes(space.f_blocks), free: bytes(space.f_bavail) })
    }
}

/// The system as it is.
#[derive(Debug)]
pub struct System;

impl Sys for System {
    fn open_cached(&self, directory: &File, name: &str) -> io::Result<File> {
        open_cached(directory, name, OFlags::RDONLY)
    }

    fn is_cached(&self, file: &File, offset: u64, length: u64) -> io::Result<bool> {
        is_cached(file, offset, length)
    }
}

/// How full a file system is, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Space {
    /// Of the file system, used or not.
    pub size: u64,
    /// What this user can still take.
    pub free: u64,
}

/// Opens a file in `directory`; one that is made is its owner's alone. Symbolic links are refused.
pub(crate) fn open(directory: &File, name: &str, flags: OFlags) -> io::Result<File> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR;
    Ok(File::from(retry_on_intr(|| rustix::fs::openat(directory, name, flags, mode))?))
}

/// Opens a directory in `directory`. Symbolic links are refused.
pub(crate) fn open_directory(directory: &File, name: &str) -> io::Result<File> {
    open(directory, name, OFlags::RDONLY | OFlags::DIRECTORY)
}

pub(crate) fn unlink(directory: &File, name: &str) -> io::Result<()> {
    Ok(retry_on_intr(|| rustix::fs::unlinkat(directory, name, AtFlags::empty()))?)
}

/// The length and the allocated bytes of a regular file; `None` when there is none of that name.
pub(crate) fn size(directory: &File, name: &str) -> io::Result<Option<(u64, u64)>> {
    match retry_on_intr(|| rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)) {
        Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile => {
            let (length, blocks) = (u64::try_from(stat.st_size), u64::try_from(stat.st_blocks));
            Ok(Some((length.unwrap_or(0), blocks.unwrap_or(0) * BLOCK)))
        }
        Ok(_) | Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Calls `visit` with each name in a directory, in no order. A directory that was removed has none. Names
/// that are not UTF-8 are left out: none of ours is like that.
pub(crate) fn for_each_name(directory: &File, mut visit: impl FnMut(&str)) -> io::Result<()> {
    let mut entries = match Dir::read_from(directory) {
        Ok(entries) => entries,
        Err(Errno::NOENT) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    loop {
        match entries.read() {
            Some(Ok(entry)) => utf8(entry.file_name()).map_or((), &mut visit),
            Some(Err(Errno::INTR)) => {}
            None | Some(Err(Errno::NOENT)) => return Ok(()),
            Some(Err(error)) => return Err(error.into()),
        }
    }
}

fn utf8(name: &CStr) -> Option<&str> {
    name.to_str().ok()
}

/// Blob files that one store may keep open without being asked: 1024, or a quarter of what the process may open.
pub(crate) fn open_files() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let quarter = limit.map_or(usize::MAX, |limit| usize::try_from(limit / 4).unwrap_or(usize::MAX));
    quarter.clamp(1, 1024)
}

/// Whether files on the file system of `directory` are kept in memory.
#[cfg(target_os = "linux")]
pub(crate) fn in_memory(directory: &File) -> io::Result<bool> {
    const TMPFS: u64 = 0x0102_1994;
    const RAMFS: u64 = 0x8584_58f6;
    let stat = retry_on_intr(|| rustix::fs::fstatfs(directory))?;
    // The kernel's type is signed on some machines: only the low 32 bits are the magic number.
    #[expect(clippy::cast_sign_loss, reason = "masked to the low bits")]
    let magic = stat.f_type as u64 & 0xffff_ffff;
    Ok(matches!(magic, TMPFS | RAMFS))
}

/// Whether files on the file system of `directory` are kept in memory.
#[cfg(not(target_os = "linux"))]
pub(crate) fn in_memory(_directory: &File) -> io::Result<bool> {
    Ok(false)
}

/// Switches `O_DIRECT`. Fails where the file system can't.
#[cfg(target_os = "linux")]
fn set_direct(file: &File, direct: bool) -> io::Result<()> {
    let mut flags = rustix::fs::fcntl_getfl(file)?;
    flags.set(OFlags::DIRECT, direct);
    Ok(rustix::fs::fcntl_setfl(file, flags)?)
}

/// There is no way that all systems share.
#[cfg(not(target_os = "linux"))]
fn set_direct(_file: &File, _direct: bool) -> io::Result<()> {
    Err(Errno::NOTSUP.into())
}

/// Asks by `cachestat`. Trying to read instead would make the system read from the disk, and more than is wanted.
#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "no crate has this call")]
pub(crate) fn is_cached(file: &File, offset: u64, length: u64) -> io::Result<bool> {
    use std::os::fd::AsRawFd;
    /// The same on all machines.
    const CACHESTAT: libc::c_long = 451;
    let page = rustix::param::page_size() as u64;
    let range = [offset, length];
    // Pages in the cache, dirty, being written, evicted, and evicted a short time ago.
    let mut counts = [0_u64; 5];
    let flags: libc::c_uint = 0;
    // SAFETY: The system reads two numbers of 64 bits from `range` and writes five to `counts`, which are as long.
    let done =
        unsafe { libc::syscall(CACHESTAT, file.as_raw_fd(), range.as_ptr(), counts.as_mut_ptr(), flags) };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    let [cached, ..] = counts;
    let end = offset.saturating_add(length);
    Ok(cached >= end.div_ceil(page) - offset / page)
}

/// There is no way that all systems share.
#[cfg(not(target_os = "linux"))]
pub(crate) fn is_cached(_file: &File, _offset: u64, _length: u64) -> io::Result<bool> {
    Err(Errno::NOTSUP.into())
}

#[cfg(target_os = "linux")]
fn read_cached(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let buffers = &mut [IoSliceMut::new(buffer)];
    Ok(rustix::io::preadv2(file, buffers, offset, rustix::io::ReadWriteFlags::NOWAIT)?)
}

/// There is no way that all systems share.
#[cfg(not(target_os = "linux"))]
fn read_cached(_file: &File, _buffer: &mut [u8], _offset: u64) -> io::Result<usize> {
    Err(Errno::NOTSUP.into())
}

/// Opens a file for reading if all that is needed for that is in memory.
#[cfg(target_os = "linux")]
pub(crate) fn open_cached(directory: &File, name: &str, flags: OFlags) -> io::Result<File> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = rustix::fs::ResolveFlags::CACHED;
    Ok(File::from(retry_on_intr(|| rustix::fs::openat2(directory, name, flags, Mode::empty(), resolve))?))
}

/// There is no way that all systems share.
#[cfg(not(target_os = "linux"))]
pub(crate) fn open_cached(_directory: &File, _name: &str, _flags: OFlags) -> io::Result<File> {
    Err(Errno::NOTSUP.into())
}

/// Opens a file to be read past the page cache; with `cached` only if all that is needed for that is in memory.
#[cfg(target_os = "linux")]
pub(crate) fn open_direct(directory: &File, name: &str, cached: bool) -> io::Result<DirectFile> {
    let flags = OFlags::RDONLY | OFlags::DIRECT;
    let file = if cached { open_cached(directory, name, flags) } else { open(directory, name, flags) }?;
    let (offset_alignment, memory_alignment) = direct_alignment(&file)?;
    Ok(DirectFile { file, offset_alignment, memory_alignment })
}

/// There is no way that all systems share.
#[cfg(not(target_os = "linux"))]
pub(crate) fn open_direct(_directory: &File, _name: &str, _cached: bool) -> io::Result<DirectFile> {
    Err(Errno::NOTSUP.into())
}

/// What a file's reads past the page cache have to be aligned to: offsets and lengths, and memory. A page, if the
/// system does not say. Fails where the file can't be read like that.
#[cfg(target_os = "linux")]
fn direct_alignment(file: &File) -> io::Result<(usize, usize)> {
    use rustix::fs::StatxFlags;
    const PAGE: usize = 4096;
    let stat = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN)?;
    if stat.stx_mask & StatxFlags::DIOALIGN.bits() == 0 {
        return Ok((PAGE, PAGE));
    }
    let fitting = |alignment: u32| {
        let alignment = usize::try_from(alignment).ok().filter(|alignment| alignment.is_power_of_two());
        alignment.filter(|alignment| *alignment <= PAGE).ok_or(Errno::NOTSUP)
    };
    Ok((fitting(stat.stx_dio_offset_align)?, fitting(stat.stx_dio_mem_align)?))
}

/// Gives the space of `length` bytes back without changing the file's length.
#[cfg(target_os = "linux")]
pub(crate) fn punch(file: &File, offset: u64, length: u64) -> io::Result<()> {
    use rustix::fs::FallocateFlags;
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    Ok(retry_on_intr(|| rustix::fs::fallocate(file, flags, offset, length))?)
}

/// Gives no space back: there is no portable way.
#[cfg(not(target_os = "linux"))]
pub(crate) fn punch(_file: &File, _offset: u64, _length: u64) -> io::Result<()> {
    Err(Errno::NOTSUP.into())
}

/// The bytes a file takes on its file system.
pub(crate) fn allocated(file: &File) -> io::Result<u64> {
    Ok(file.metadata()?.blocks() * BLOCK)
}

/// What an error of the system means to a store's caller.
pub(crate) fn kind(error: &io::Error) -> StoreErrorKind {
    match Errno::from_io_error(error) {
        Some(Errno::NOSPC | Errno::DQUOT | Errno::FBIG) => StoreErrorKind::NoSpace,
        Some(Errno::ACCESS | Errno::PERM | Errno::ROFS) => StoreErrorKind::Denied,
        Some(Errno::MFILE | Errno::NFILE | Errno::AGAIN | Errno::TIMEDOUT | Errno::INTR | Errno::NOMEM) => {
            StoreErrorKind::Transient
        }
        None if error.kind() == io::ErrorKind::OutOfMemory => StoreErrorKind::Transient,
        _ => StoreErrorKind::Other,
    }
}

/// Whether the system can't do what was asked for, or not like this, whatever the state of the file.
pub(crate) fn is_unsupported(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS))
}

pub(crate) fn is_missing(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
}

/// The file of a whole blob.
pub(crate) fn blob_name(id: BlobId) -> String {
    format!("{id}.blob")
}

/// The file of a blob being written.
pub(crate) fn part_name(id: BlobId) -> String {
    format!("{id}.part")
}

/// The blob whose file has this name.
pub(crate) fn blob_of(name: &str) -> Option<BlobId> {
    name.strip_suffix(".blob")?.parse().ok()
}

/// Whether a store makes files of this name in its session directory, apart from the lock.
pub(crate) fn is_ours(name: &str) -> bool {
    name.strip_suffix(".part")
        .or_else(|| name.strip_suffix(".blob"))
        .is_some_and(|id| id.parse::<BlobId>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f03_errors_of_the_system_are_told_apart() {
        use StoreErrorKind::{Denied, NoSpace, Other, Transient};
        for (errno, expected) in [
            (Errno::NOSPC, NoSpace),
            (Errno::DQUOT, NoSpace),
            (Errno::FBIG, NoSpace),
            (Errno::ACCESS, Denied),
            (Errno::PERM, Denied),
            (Errno::ROFS, Denied),
            (Errno::MFILE, Transient),
            (Errno::NFILE, Transient),
            (Errno::AGAIN, Transient),
            (Errno::TIMEDOUT, Transient),
            (Errno::IO, Other),
            (Errno::NOENT, Other),
        ] {
            assert_eq!(kind(&errno.into()), expected, "{errno:?}");
        }
    }

    #[test]
    fn s03_only_our_own_names_are_ours() {
        assert!(is_ours("00000000000000ff.blob") && is_ours("00000000000000ff.part"));
        for foreign in
            ["lock", "ff.blob", "00000000000000FF.blob", "00000000000000ff.blob.bak", "notes.part", "."]
        {
            assert!(!is_ours(foreign) && blob_of(foreign).is_none(), "{foreign}");
        }
        assert_eq!(blob_of("00000000000000ff.part"), None);
        assert_eq!(blob_of("00000000000000ff.blob"), Some(BlobId::new(255)));
    }
}
