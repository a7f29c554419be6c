//! Trouble in the medium, at every call of it that an operation makes.
//!
//! Each case repeats one operation, and lets trouble meet the first call of the medium, then the second, and
//! so on until the operation no longer gets that far. Each time the answer has to be right, or an error of
//! the right kind; and when the trouble is over everything has to be in order.

use std::{collections::BTreeSet, fmt, pin::pin, sync::Arc};

use bytes::Bytes;
use futures_util::{
    FutureExt,
    future::{BoxFuture, Either, select},
};
use spill_core::{
    BlobId, BlobMeta, ByteLength, BytesCodec, Error, SpillBuffer, Store, StoreError, StoreErrorKind, TierSpec,
};

use crate::{
    medium::{Medium, Trouble},
    runner::{Stop, Verdict, ensure, ensure_eq},
    store::{
        Case, Group, Need,
        place::{
            Place, expect_bytes, expect_missing, id, ids, list_all, made_pattern, pattern, put, put_all,
            put_bytes, same_bytes, whole_or_missing,
        },
    },
};

/// An operation that makes more calls of its medium than this has no end.
const MOST_CALLS: u64 = 2000;
/// Blobs in a batch that is deleted.
const BATCH: u64 = 12;
const SMALL: usize = 5000;
/// Blobs that are there all the time.
const KEPT_SMALL: BlobId = id(1);
const KEPT_LARGE: BlobId = id(2);

/// Lists cases: `name: operation trouble`, or `name: operation trouble lasting` when it stays.
macro_rules! faults {
    ($($name:ident: $operation:ident $trouble:ident $($lasting:ident)?;)*) => {
        &[$(Case {
            name: stringify!($name),
            group: Group::Faults,
            needs: &[Need::Trouble(Trouble::$trouble)],
            run: |place| Box::pin(async move {
                let lasting: &[&str] = &[$(stringify!($lasting))?];
                let plan = Plan { trouble: Trouble::$trouble, lasting: !lasting.is_empty() };
                at_every_call(&place, Operation::$operation, plan).await
            }),
        }),*]
    };
}

pub(super) const PUTS: &[Case] = faults!(
    put_meets_no_space: Put NoSpace;
    put_meets_no_space_that_lasts: Put NoSpace lasting;
    put_meets_an_io_error: Put IoError;
    put_meets_io_errors_that_last: Put IoError lasting;
    put_meets_a_short_write: Put Short;
    put_meets_short_writes_only: Put Short lasting;
    put_meets_a_torn_write: Put Torn;
    put_hangs: Put Hang;
    put_is_throttled: Put Throttled;
    put_meets_a_server_error: Put ServerError;
    put_meets_an_unavailable_server: Put Unavailable;
    put_meets_a_server_that_stays_unavailable: Put Unavailable lasting;
    put_is_reset_before_the_effect: Put ResetBefore;
    put_is_reset_after_the_effect: Put ResetAfter;
);

pub(super) const READS: &[Case] = faults!(
    get_meets_an_io_error: Get IoError;
    get_is_truncated: Get Truncated;
    get_has_a_flipped_bit: Get BitFlip;
    get_hangs: Get Hang;
    get_is_throttled: Get Throttled;
    get_meets_a_server_error: Get ServerError;
    get_meets_an_unavailable_server: Get Unavailable;
    get_is_reset_before_the_effect: Get ResetBefore;
    get_is_reset_after_the_effect: Get ResetAfter;
    list_meets_an_io_error: List IoError;
    list_hangs: List Hang;
    list_is_throttled: List Throttled;
    list_meets_an_unavailable_server: List Unavailable;
    list_is_reset_after_the_effect: List ResetAfter;
);

pub(super) const OTHERS: &[Case] = faults!(
    delete_meets_an_io_error: Delete IoError;
    delete_meets_io_errors_that_last: Delete IoError lasting;
    delete_hangs: Delete Hang;
    delete_is_throttled: Delete Throttled;
    delete_meets_an_unavailable_server: Delete Unavailable;
    delete_is_reset_before_the_effect: Delete ResetBefore;
    delete_is_reset_after_the_effect: Delete ResetAfter;
    close_meets_an_io_error: Close IoError;
    close_hangs: Close Hang;
    close_is_throttled: Close Throttled;
    close_meets_an_unavailable_server: Close Unavailable;
    close_is_reset_after_the_effect: Close ResetAfter;
    open_meets_no_space: Open NoSpace;
    open_meets_an_io_error: Open IoError;
    open_meets_an_unavailable_server: Open Unavailable;
);

pub(super) const VALUES: &[Case] = super::cases!(Faults:
    a_flipped_bit_never_reaches_a_value needs [Trouble(Trouble::BitFlip)],
);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Put,
    Get,
    Delete,
    List,
    Close,
    Open,
}

impl Operation {
    fn calls(self) -> &'static [Call] {
        match self {
            Self::Put => &[Call::PutSmall, Call::PutLarge],
            Self::Get => &[Call::GetSmallRange, Call::GetLarge],
            Self::Delete => &[Call::Delete],
            Self::List => &[Call::List],
            Self::Close => &[Call::Close],
            Self::Open => &[Call::Open],
        }
    }

    /// Whether no store can do it without its medium.
    fn must_use_the_medium(self) -> bool {
        matches!(self, Self::Put | Self::Get | Self::Delete)
    }
}

#[derive(Clone, Copy, Debug)]
enum Call {
    PutSmall,
    PutLarge,
    GetSmallRange,
    GetLarge,
    Delete,
    List,
    Close,
    Open,
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::PutSmall => "put of a small blob",
            Self::PutLarge => "put of a large blob",
            Self::GetSmallRange => "get of a part of a small blob",
            Self::GetLarge => "get of a large blob",
            Self::Delete => "delete of many blobs",
            Self::List => "list",
            Self::Close => "close",
            Self::Open => "open",
        })
    }
}

#[derive(Clone, Copy, Debug)]
struct Plan {
    trouble: Trouble,
    lasting: bool,
}

impl Plan {
    fn arm(self, medium: &Medium, before: u64) {
        match self.lasting {
            true => medium.arm_lasting(self.trouble, before),
            false => medium.arm(self.trouble, before),
        }
    }

    fn hangs(self) -> bool {
        self.trouble == Trouble::Hang
    }

    /// The kinds of error that say what happened; none when there is no excuse for one.
    fn kinds(self) -> &'static [StoreErrorKind] {
        use StoreErrorKind::{Corrupt, NoSpace, Other, Transient};
        match self.trouble {
            Trouble::NoSpace => &[NoSpace],
            Trouble::IoError | Trouble::Torn => &[Other, Transient],
            Trouble::Truncated | Trouble::BitFlip => &[Corrupt, Transient],
            Trouble::Throttled
            | Trouble::ServerError
            | Trouble::Unavailable
            | Trouble::ResetBefore
            | Trouble::ResetAfter => &[Transient],
            Trouble::Short | Trouble::Hang => &[],
        }
    }
}

/// How a call went that may have met trouble.
struct Attempt<T> {
    /// How many calls of the medium met it.
    met: u64,
    /// The answer; `None` when the call hung and was dropped.
    answer: Option<Result<T, StoreError>>,
}

/// A session over a medium with trouble.
struct Bench<'a> {
    place: &'a Place,
    medium: &'a Medium,
    plan: Plan,
    store: Arc<dyn Store>,
    small: Bytes,
    large: Bytes,
}

/// Lets trouble meet each call of the medium that an operation makes.
async fn at_every_call(place: &Place, operation: Operation, plan: Plan) -> Verdict {
    let medium = Medium::new();
    let verdict = sweep(place, &medium, operation, plan).await;
    // Whatever still hangs goes on, or the runtime could not end.
    medium.heal();
    verdict
}

async fn sweep(place: &Place, medium: &Medium, operation: Operation, plan: Plan) -> Verdict {
    let bench = Bench::open(place, medium, plan).await?;
    let (mut met, mut next) = (false, 0);
    for call in operation.calls() {
        for before in 0.. {
            ensure!(before < MOST_CALLS, "{call} makes more than {MOST_CALLS} calls of the medium");
            // Ids that no call before has used.
            next += 100;
            let attempt = async {
                let times = bench.attempt(*call, before, next).await?;
                expect_bytes(&*bench.store, KEPT_SMALL, &bench.small).await?;
                Ok(times)
            };
            let times = attempt.await.map_err(|stop: Stop| {
                stop.at(format_args!("{call}, {:?} at call {before} of the medium", plan.trouble))
            })?;
            if times == 0 {
                break;
            }
            met = true;
        }
    }
    if !met && operation.must_use_the_medium() {
        let trouble = plan.trouble;
        return Err(format!("no call of the medium was asked about that {trouble:?} can meet").into());
    }
    if !met {
        return Err(Stop::NotApplicable("makes no call of the medium that is asked about".into()));
    }
    bench.finish(operation).await
}

impl<'a> Bench<'a> {
    async fn open(place: &'a Place, medium: &'a Medium, plan: Plan) -> Result<Self, Stop> {
        let store = place.opening_over(medium).await?;
        place.adopt(&store);
        let large = place.large_blob().min(store.info().max_blob);
        let large = usize::try_from(large).map_err(|error| error.to_string())?;
        let (small, large) = (pattern(id(3), SMALL), made_pattern(id(4), large).await?);
        put_bytes(&*store, KEPT_SMALL, &small).await?;
        put_bytes(&*store, KEPT_LARGE, &large).await?;
        Ok(Self { place, medium, plan, store, small, large })
    }

    /// Runs one call, `before` calls of the medium going well. How many met trouble.
    async fn attempt(&self, call: Call, before: u64, next: u64) -> Result<u64, Stop> {
        match call {
            Call::PutSmall => self.put(before, id(next), &self.small).await,
            Call::PutLarge => self.put(before, id(next), &self.large).await,
            Call::GetSmallRange => {
                // A fresh blob, of which nothing is kept open.
                put_bytes(&*self.store, id(next), &self.small).await?;
                let met = self.get(before, id(next), &self.small, 10, SMALL - 10).await?;
                self.store.delete(&[id(next)]).await?;
                Ok(met)
            }
            Call::GetLarge => self.get(before, KEPT_LARGE, &self.large, 0, self.large.len()).await,
            Call::Delete => self.delete(before, next).await,
            Call::List => self.list(before).await,
            Call::Close => self.close(before).await,
            Call::Open => self.reopen(before).await,
        }
    }

    /// Lets a call meet trouble, heals the medium, and checks the kind of the error.
    async fn under_trouble<T>(
        &self,
        before: u64,
        call: BoxFuture<'_, Result<T, StoreError>>,
    ) -> Result<Attempt<T>, Stop> {
        self.plan.arm(self.medium, before);
        let answer = if self.plan.hangs() {
            match select(call, pin!(self.medium.met())).await {
                Either::Left((answer, _)) => Some(answer),
                Either::Right((_, call)) => {
                    drop(call);
                    None
                }
            }
        } else {
            Some(call.await)
        };
        if answer.is_none() {
            let read = expect_bytes(&*self.store, KEPT_SMALL, &self.small);
            let read = tokio::time::timeout(self.place.settle_limit(), read).await;
            read.map_err(|_| "a call that hangs, and was dropped, keeps a read of another blob waiting")??;
        }
        let met = self.medium.heal();
        if let Some(Err(error)) = &answer {
            ensure!(met > 0, "an error without any trouble: {error}");
            let kinds = self.plan.kinds();
            let kind = error.kind();
            ensure!(
                kinds.contains(&kind),
                "an error of the kind {kind:?}, wanted {kinds:?} or none: {error}"
            );
        }
        Ok(Attempt { met, answer })
    }

    /// Waits for what may come about soon after a call that was dropped; after an answer it has to hold.
    async fn in_order<F: Future<Output = Verdict>>(&self, mut check: impl FnMut() -> F) -> Verdict {
        if self.plan.hangs() { self.place.soon(check).await } else { check().await }
    }

    async fn put(&self, before: u64, id: BlobId, bytes: &Bytes) -> Result<u64, Stop> {
        let store = &*self.store;
        let Attempt { met, answer } =
            self.under_trouble(before, store.put(id, bytes.clone().into()).boxed()).await?;
        match answer {
            Some(Ok(stored)) => {
                ensure_eq!(stored.bytes, bytes.len() as u64, "Stored.bytes of a put that met trouble");
                expect_bytes(store, id, bytes).await?;
            }
            Some(Err(_)) => whole_or_missing(store, id, bytes, "whose put failed").await?,
            None => whole_or_missing(store, id, bytes, "whose put hung and was dropped").await?,
        }
        let again = || async {
            store.delete(&[id]).await?;
            expect_missing(store, id).await?;
            put_bytes(store, id, bytes).await.map_err(|stop| stop.at("again, after the delete"))?;
            expect_bytes(store, id, bytes).await
        };
        self.in_order(again).await?;
        store.delete(&[id]).await?;
        Ok(met)
    }

    async fn get(&self, before: u64, id: BlobId, whole: &Bytes, from: usize, to: usize) -> Result<u64, Stop> {
        let range = from as u64..to as u64;
        let attempt = self.under_trouble(before, self.store.get(id, range.clone()).boxed()).await?;
        if let Some(Ok(found)) = attempt.answer {
            same_bytes(&found, &whole[from..to], "what a read brought that met trouble")?;
        }
        same_bytes(&self.store.get(id, range).await?, &whole[from..to], "what was read after the trouble")?;
        Ok(attempt.met)
    }

    async fn delete(&self, before: u64, first: u64) -> Result<u64, Stop> {
        let store = &*self.store;
        let batch: Vec<_> = (first..first + BATCH).map(id).collect();
        put_all(store, &batch.iter().map(|id| (*id, 100)).collect::<Vec<_>>()).await?;
        let Attempt { met, answer } = self.under_trouble(before, store.delete(&batch).boxed()).await?;
        let gone: Vec<BlobId> = match answer {
            Some(Ok(())) => batch.clone(),
            Some(Err(error)) if !error.failed().is_empty() => {
                let failed: BTreeSet<_> = error.failed().iter().copied().collect();
                let foreign: Vec<_> = failed.iter().filter(|id| !batch.contains(id)).collect();
                ensure!(foreign.is_empty(), "the delete names {foreign:?}, which it was not asked to remove");
                batch.iter().copied().filter(|id| !failed.contains(id)).collect()
            }
            // Any of them may still be there.
            _ => Vec::new(),
        };
        let listed: BTreeSet<_> = ids(store).await?.into_iter().collect();
        for id in &batch {
            whole_or_missing(store, *id, &pattern(*id, 100), "of a batch whose delete met trouble").await?;
            if gone.contains(id) {
                expect_missing(store, *id).await.map_err(|stop| stop.at("the delete did not name it"))?;
                ensure!(!listed.contains(id), "blob {id} is listed, and the delete did not name it");
            }
        }
        let again = || async {
            store.delete(&batch).await?;
            ensure_eq!(ids(store).await?, [KEPT_SMALL, KEPT_LARGE], "listing after it was deleted again");
            Ok(())
        };
        self.in_order(again).await?;
        Ok(met)
    }

    async fn list(&self, before: u64) -> Result<u64, Stop> {
        let kept = [KEPT_SMALL, KEPT_LARGE];
        let names = |page: &[BlobMeta]| page.iter().map(|meta| meta.id).collect::<Vec<_>>();
        let attempt = self.under_trouble(before, self.store.list(None, 1000).boxed()).await?;
        if let Some(Ok(page)) = attempt.answer {
            ensure_eq!(names(&page), kept, "listing that met trouble");
        }
        ensure_eq!(names(&list_all(&*self.store, 1000).await?), kept, "listing after the trouble");
        Ok(attempt.met)
    }

    async fn close(&self, before: u64) -> Result<u64, Stop> {
        let already_there = self.leftovers().await?;
        let session = self.place.opening_over(self.medium).await?;
        let blobs: Vec<_> = (10..20).map(|number| (id(number), 100)).collect();
        put_all(&*session, &blobs).await?;
        let Attempt { met, answer } = self.under_trouble(before, session.close().boxed()).await?;
        if !matches!(answer, Some(Ok(()))) {
            let again = || async { Ok(session.close().await?) };
            self.place.soon(again).await.map_err(|stop| stop.at("closing again"))?;
        }
        self.place
            .soon(|| async {
                ensure_eq!(self.leftovers().await?, already_there, "there after it was closed");
                Ok(())
            })
            .await?;
        Ok(met)
    }

    async fn reopen(&self, before: u64) -> Result<u64, Stop> {
        let attempt = self.under_trouble(before, self.place.opening_over(self.medium)).await?;
        let session = match attempt.answer {
            Some(Ok(session)) => session,
            _ => self
                .place
                .opening_over(self.medium)
                .await
                .map_err(|error| format!("opening again: {error}"))?,
        };
        self.place.adopt(&session);
        put(&*session, id(1), 100).await?;
        expect_bytes(&*session, id(1), &pattern(id(1), 100)).await?;
        self.place.close(session).await?;
        Ok(attempt.met)
    }

    /// What is there, sorted; nothing when nobody can look.
    async fn leftovers(&self) -> Result<Vec<String>, Stop> {
        if !self.place.can_look_past_the_store() {
            return Ok(Vec::new());
        }
        let mut found = self.place.leftovers().await?;
        found.sort_unstable();
        Ok(found)
    }

    /// Checks that all is as if there had been no trouble, and closes.
    async fn finish(self, operation: Operation) -> Verdict {
        let store = &*self.store;
        expect_bytes(store, KEPT_LARGE, &self.large).await?;
        let listed = || async {
            ensure_eq!(ids(store).await?, [KEPT_SMALL, KEPT_LARGE], "listing after all trouble");
            Ok(())
        };
        self.in_order(listed).await?;
        self.place.close(Arc::clone(&self.store)).await?;
        // An open that failed may leave something to a sweep.
        if operation == Operation::Open {
            return Ok(());
        }
        self.place
            .soon(|| async {
                ensure_eq!(self.leftovers().await?, Vec::<String>::new(), "left over after close");
                Ok(())
            })
            .await
    }
}

/// The frames of a buffer see what a store does not.
async fn a_flipped_bit_never_reaches_a_value(place: &Place) -> Verdict {
    let medium = Medium::new();
    let store = place.opening_over(&medium).await?;
    let buffer = SpillBuffer::<u64, Bytes>::builder()
        .memory_limit(4 << 20)
        .codec(BytesCodec)
        .weigher(ByteLength)
        .tier(TierSpec::from_arc(store))
        .build()
        .map_err(|error| format!("no buffer: {error}"))?;
    let value = |key: u64| pattern(id(key), 20_000);
    for key in 0..3 {
        buffer.insert(key, value(key)).await.map_err(|error| format!("insert: {error}"))?;
    }
    let mut met = 0;
    for round in 0..6 {
        for key in 0..3 {
            buffer.spill(&key).await.map_err(|error| format!("spill: {error}"))?;
            medium.arm(Trouble::BitFlip, round % 2);
            let found = buffer.get(&key).await;
            met += medium.heal();
            match found {
                Ok(Some(found)) => same_bytes(&found, &value(key), "a value read through a flipped bit")?,
                Ok(None) => return Err("a value is lost to a flipped bit".into()),
                Err(Error::Corrupt { .. } | Error::Store { .. }) => {}
                Err(error) => return Err(format!("wanted a damaged value, found: {error}").into()),
            }
            let found = buffer.get(&key).await.map_err(|error| format!("get after the trouble: {error}"))?;
            let found = found.ok_or("a value is lost to a flipped bit")?;
            same_bytes(&found, &value(key), "a value read after the trouble")?;
        }
    }
    ensure!(met > 0, "no read of the medium was asked about");
    buffer.close().await.map_err(|error| format!("close: {error}").into())
}
