//! The local-file store of Spill: blobs as files, in a directory of their own per opened store.
//!
//! You get [`FsStore`], opened with [`FsOptions`]; [`FsFactory`], which opens one from a `file:` URL and
//! settings by name; and [`sweep`], which removes what dead processes left. Packing many values into a blob,
//! compression, quotas and retries are not here: they are above the store, in `spill-core`.
//!
//! # On disk
//! ```text
//! ROOT/                           yours; made, with its parents, when it is not there
//!   .spill-lock                   held while a session is born or ends; gone when there are no sessions
//!   spill-<16 hex digits>/        one opened store, its session; mode 0700
//!     lock                        held as long as the store lives; a session whose lock is free is dead
//!     <16 hex digits>.part        a blob being written; mode 0600
//!     <16 hex digits>.blob        a blob, whole and never changed; mode 0600
//! ```
//! Any number of processes may share a ROOT. Opening a store sweeps the dead sessions in it first. Locks
//! are `flock` locks: they vanish with the process, so a reused process id means nothing. Files in ROOT
//! that are not named like this are never touched, and no symbolic link in ROOT is followed.
//!
//! # Limits
//! | what | at most |
//! |---|---|
//! | blob files open for reading | [`FsOptions::open_files`], 1024 or a quarter of `ulimit -n` unless changed, two for a blob where there is a ring; two more for each thread that reads what is cached |
//! | reads in the ring | 128, fewer with few open files; the others are read by threads |
//! | memory for reading | what is on its way, and 8 MiB that are kept to be used again |
//! | memory for writing past the page cache | 1 MiB for each of 4 writes; 2 MiB are kept |
//! | jobs on blocking threads | 16 that read (256 with those that wait; others behind them), 4 that write, 4 that delete, punch or list |
//! | all open files of a store | `open_files` + 4 + 4 + 4 (directories and locks) + 3 (the ring) |
//! | waiting for another process to open or close a session in ROOT | 10 seconds |
//!
//! Reads, writes and deletes never queue behind each other here; each has its own jobs. One operation is one
//! job on a blocking thread, whatever number of system calls it takes. What is in the page cache is read where it is
//! asked for, up to 1 MiB, and of the rest up to 256 KiB by the ring.
//!
//! # The ring
//! Where the system has `io_uring` and the runtime an I/O driver (`enable_io`), what is not cached is read by it: up to
//! 32 KiB past the page cache, where the file system can and the system says what is cached (`cachestat`, Linux 6.5);
//! up to 256 KiB, or what goes on where the last reads ended, through it, while few such reads are on their way, and by
//! threads when there are many. Nothing has to be set for that. The ring belongs to the runtime
//! that reads. Another runtime takes it over when nothing is on its way in it, and reads by threads until then; so does
//! everybody where there is no ring. On a current-thread runtime a read goes on while that runtime runs, as its sockets
//! do. That a runtime has no I/O driver is found out by a panic that is caught, of which the panic hook tells once; so
//! there is no ring in programs built with `panic = "abort"`. A future that is dropped leaves its memory to the read
//! until that has ended; only when the runtime and the store are gone before, that memory is never used again.
//!
//! # What survives what
//! A blob whose `put` returned survives the death of the process for as long as nobody sweeps, which is of
//! use to nobody but a debugger: a buffer's index dies with it. Power loss can take any blob that was not
//! put with [`FsOptions::durable`].
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use spill_backend_fs::{FsOptions, FsStore};
//! use spill_core::{BlobId, Store};
//!
//! let root = tempfile::tempdir()?;
//! let store = FsStore::open(FsOptions::new(root.path()).allow_tmpfs(true)).await?;
//! let stored = store.put(BlobId::new(1), b"payload".to_vec().into()).await?;
//! assert_eq!(stored.bytes, 7);
//! assert_eq!(store.get(BlobId::new(1), 0..3).await?, "pay");
//! store.close().await?;
//! assert_eq!(std::fs::read_dir(root.path())?.count(), 0);
//! # Ok(())
//! # }
//! ```
#![deny(unsafe_code)]

mod buffers;
mod crew;
mod direct;
mod factory;
mod files;
mod options;
mod read;
mod ring;
mod session;
mod store;
mod sys;
mod uring;
mod write;

#[cfg(test)]
mod faults;

pub use factory::FsFactory;
pub use options::{FsOptions, ParseReserveFreeError, ReserveFree};
pub use session::{SweepReport, sweep};
pub use store::FsStore;

/// The seam for tests of this crate; no part of what it promises.
#[doc(hidden)]
pub mod seam {
    pub use crate::sys::{Space, Sys, System};
}
