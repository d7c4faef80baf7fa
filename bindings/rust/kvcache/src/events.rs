//! Events: what the prefix index holds, for routers.

use crate::error::{check, Error, Result, Status};
use crate::kinds::{EventKind, Tier};
use crate::library::loaded;
use crate::prefix::BlockHash;
use crate::CacheRef;
use kvcache_sys as sys;
use std::ptr::null_mut;

/// One change of the prefix index, for one group of one block; see `kvc_event`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// 1, 2, 3, ...; a gap says that events were lost: take a snapshot.
    pub number: u64,
    /// What happened.
    pub kind: EventKind,
    /// Where the block is.
    pub tier: Tier,
    /// Where it was, of [`EventKind::Moved`].
    pub from_tier: Tier,
    /// Group of layers; `None`: the recurrent state at the block's end.
    pub group: Option<usize>,
    /// Tokens of the block.
    pub num_tokens: usize,
    /// Their ids, of [`EventKind::Stored`], when they are known.
    pub tokens: Option<Vec<i32>>,
    /// Key of the block.
    pub hash: BlockHash,
    /// Of [`EventKind::Stored`]: key of the block before, or the root of the namespace.
    pub parent: BlockHash,
}

impl Event {
    /// # Safety
    /// The library's, not older than its last call that takes `kvc_cache *`.
    unsafe fn new(raw: &sys::kvc_event) -> Result<Self> {
        let unknown = || {
            Error::new(Status::Version, format!("event {}: a type or tier of a newer library", raw.number))
        };
        let num_tokens = usize::try_from(raw.num_tokens).unwrap_or(0);
        Ok(Event {
            number: raw.number,
            kind: EventKind::from_raw(raw.type_).ok_or_else(unknown)?,
            tier: Tier::from_raw(raw.tier).ok_or_else(unknown)?,
            from_tier: Tier::from_raw(raw.from_tier).ok_or_else(unknown)?,
            group: usize::try_from(raw.group).ok(),
            num_tokens,
            tokens: (!raw.tokens.is_null()).then(|| {
                // SAFETY: num_tokens ids, valid until the next call.
                unsafe { std::slice::from_raw_parts(raw.tokens, num_tokens) }.to_vec()
            }),
            hash: raw.hash,
            parent: raw.parent,
        })
    }
}

impl CacheRef {
    /// The oldest unpolled events, at most `most`.
    pub fn events_poll(&mut self, most: usize) -> Result<Vec<Event>> {
        let mut events = vec![sys::kvc_event::default(); most];
        let mut count = most;
        // SAFETY: exclusive; an array with its capacity.
        check(|error| unsafe {
            (loaded().events_poll)(self.as_mut_ptr(), events.as_mut_ptr(), &mut count, error)
        })?;
        // SAFETY: just polled, and nothing was called since.
        events[..count].iter().map(|event| unsafe { Event::new(event) }).collect()
    }

    /// Everything that the index holds as [`EventKind::Stored`] events, parents before children, and the
    /// number of the last event that they include.
    pub fn events_snapshot(&self) -> Result<(Vec<Event>, u64)> {
        let (mut count, mut number) = (0, 0);
        // SAFETY: NULL asks for the count.
        check(|error| unsafe {
            (loaded().events_snapshot)(self.as_ptr(), null_mut(), &mut count, &mut number, error)
        })?;
        let mut events = vec![sys::kvc_event::default(); count];
        if count > 0 {
            // SAFETY: an array with its capacity; nothing can change the index meanwhile, which needs an
            // exclusive borrow.
            check(|error| unsafe {
                (loaded().events_snapshot)(self.as_ptr(), events.as_mut_ptr(), &mut count, &mut number, error)
            })?;
        }
        // SAFETY: just taken.
        let events = events[..count].iter().map(|event| unsafe { Event::new(event) });
        Ok((events.collect::<Result<_>>()?, number))
    }
}
