//! The prefix cache: prompts that begin alike share pages.

use crate::error::{check, check_out, Result};
use crate::library::{api, loaded};
use crate::{CacheRef, SeqId};
use kvcache_sys as sys;
use std::ptr::null;

/// Key of a block of tokens: it names the block, all tokens before it and the namespace. Equal in every
/// process and language.
pub type BlockHash = [u8; sys::KVC_HASH_BYTES];

/// What K and V depend on beside the tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefixKey<'a> {
    /// [`PrefixKey::ADAPTER`], [`PrefixKey::MEDIA`], or [`PrefixKey::USER`] and above.
    pub kind: u32,
    /// Token where it begins to matter.
    pub offset: i64,
    /// At most 4,096 bytes.
    pub data: &'a [u8],
}

impl<'a> PrefixKey<'a> {
    /// LoRA or another adapter.
    pub const ADAPTER: u32 = sys::KVC_PREFIX_KEY_ADAPTER.0;
    /// Digest of an image, audio or video.
    pub const MEDIA: u32 = sys::KVC_PREFIX_KEY_MEDIA.0;
    /// This and all above: the host's own.
    pub const USER: u32 = sys::KVC_PREFIX_KEY_USER.0;

    /// An adapter, which matters from the first token on.
    pub fn adapter(data: &'a [u8]) -> Self {
        PrefixKey { kind: Self::ADAPTER, offset: 0, data }
    }

    /// The digest of a medium whose first token is `offset`.
    pub fn media(offset: i64, data: &'a [u8]) -> Self {
        PrefixKey { kind: Self::MEDIA, offset, data }
    }

    fn raw(&self) -> sys::kvc_prefix_key {
        sys::kvc_prefix_key {
            type_: sys::kvc_prefix_key_type(self.kind),
            offset: self.offset,
            data: self.data.as_ptr().cast(),
            size: self.data.len(),
            ..Default::default()
        }
    }
}

fn raw_keys(keys: &[PrefixKey<'_>]) -> Vec<sys::kvc_prefix_key> {
    keys.iter().map(PrefixKey::raw).collect()
}

/// A prompt to look for: tokens, a namespace, and what else K and V depend on; see `kvc_prefix_query`.
///
/// ```
/// use kvcache::{PrefixKey, Query};
/// let prompt: Vec<i32> = (0..1000).collect();
/// let keys = [PrefixKey::adapter(b"lora-3")];
/// let query = Query::new(&prompt).salt(b"tenant 7").keys(&keys).priority(50);
/// # let _ = query;
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Query<'a> {
    tokens: Option<&'a [i32]>,
    num_tokens: i64,
    hashes: &'a [BlockHash],
    salt: &'a [u8],
    keys: &'a [PrefixKey<'a>],
    priority: i32,
    all_tokens: bool,
    whole_blocks: bool,
}

impl<'a> Query<'a> {
    /// These tokens.
    pub fn new(tokens: &'a [i32]) -> Self {
        Query {
            tokens: Some(tokens),
            num_tokens: tokens.len() as i64,
            hashes: &[],
            salt: &[],
            keys: &[],
            priority: 0,
            all_tokens: false,
            whole_blocks: false,
        }
    }

    /// `num_tokens` tokens of which only the keys of their full blocks are known. Nothing hits inside a block
    /// then.
    pub fn of_hashes(hashes: &'a [BlockHash], num_tokens: i64) -> Self {
        Query { tokens: None, num_tokens, hashes, ..Query::new(&[]) }
    }

    /// Keys of the leading full blocks as [`prefix_hash`] makes them, so that they are not computed again.
    /// They are trusted.
    #[must_use]
    pub fn hashes(mut self, hashes: &'a [BlockHash]) -> Self {
        self.hashes = hashes;
        self
    }

    /// The namespace, for example a tenant: nothing is shared across.
    #[must_use]
    pub fn salt(mut self, salt: &'a [u8]) -> Self {
        self.salt = salt;
        self
    }

    /// More than tokens that K and V depend on.
    #[must_use]
    pub fn keys(mut self, keys: &'a [PrefixKey<'a>]) -> Self {
        self.keys = keys;
        self
    }

    /// Of the blocks that are published: 0 to 100, higher stays longer.
    #[must_use]
    pub fn priority(mut self, priority: i32) -> Self {
        self.priority = priority;
        self
    }

    /// All tokens may hit; without it the last one is left to be computed.
    #[must_use]
    pub fn all_tokens(mut self) -> Self {
        self.all_tokens = true;
        self
    }

    /// No hit inside a block.
    #[must_use]
    pub fn whole_blocks(mut self) -> Self {
        self.whole_blocks = true;
        self
    }

    fn with_raw<T>(&self, call: impl FnOnce(*const sys::kvc_prefix_query) -> T) -> T {
        let keys = raw_keys(self.keys);
        let flag = |on: bool, bit: u64| if on { bit } else { 0 };
        call(&sys::kvc_prefix_query {
            flags: flag(self.all_tokens, sys::KVC_PREFIX_ALL_TOKENS)
                | flag(self.whole_blocks, sys::KVC_PREFIX_WHOLE_BLOCKS),
            num_tokens: self.num_tokens,
            tokens: self.tokens.map_or(null(), <[_]>::as_ptr),
            hashes: if self.hashes.is_empty() { null() } else { self.hashes.as_ptr().cast() },
            num_hashes: self.hashes.len(),
            salt: self.salt.as_ptr().cast(),
            salt_size: self.salt.len(),
            keys: keys.as_ptr(),
            num_keys: keys.len(),
            priority: self.priority,
            ..Default::default()
        })
    }
}

/// Keys of the full blocks of `tokens`: the same in every process and language.
pub fn prefix_hash(
    tokens: &[i32],
    block_tokens: i32,
    salt: &[u8],
    keys: &[PrefixKey<'_>],
) -> Result<Vec<BlockHash>> {
    let api = api()?;
    let keys = raw_keys(keys);
    // SAFETY: arrays with their lengths; the output has as many keys as the library asked for.
    crate::plan::array([0; sys::KVC_HASH_BYTES], |out: *mut BlockHash, len, error| unsafe {
        (api.prefix_hash)(
            tokens.as_ptr(),
            tokens.len(),
            block_tokens,
            salt.as_ptr().cast(),
            salt.len(),
            keys.as_ptr(),
            keys.len(),
            out.cast(),
            len,
            error,
        )
    })
}

/// A query call with one output.
macro_rules! query {
    ($cache:expr, $name:ident, [$($argument:expr),*], $query:expr) => {
        $query.with_raw(|query| {
            check_out(0i64, |out, error| {
                // SAFETY: as the function's constness says; the query's arrays live for the call.
                unsafe { (loaded().$name)($cache, $($argument,)* query, out, error) }
            })
        })
    };
}

impl CacheRef {
    /// Leading tokens that [`prefix_attach`](CacheRef::prefix_attach) would find now.
    pub fn prefix_match(&self, query: &Query<'_>) -> Result<i64> {
        query!(self.as_ptr(), prefix_match, [], query)
    }

    /// Adds `seq` with the longest hit and returns its length; 0 when nothing hits.
    pub fn prefix_attach(&mut self, seq: SeqId, query: &Query<'_>) -> Result<i64> {
        query!(self.as_mut_ptr(), prefix_attach, [seq], query)
    }

    /// Says that the first tokens of `seq` are the query's, and publishes their full blocks. Returns how many
    /// tokens are in the index now.
    pub fn prefix_insert(&mut self, seq: SeqId, query: &Query<'_>) -> Result<i64> {
        query!(self.as_mut_ptr(), prefix_insert, [seq], query)
    }

    /// Keeps the query's blocks from being evicted; counts. Returns the tokens that are pinned.
    pub fn prefix_pin(&mut self, query: &Query<'_>) -> Result<i64> {
        query!(self.as_mut_ptr(), prefix_pin, [], query)
    }

    /// Undoes one pin of the same query.
    pub fn prefix_unpin(&mut self, query: &Query<'_>) -> Result<i64> {
        query!(self.as_mut_ptr(), prefix_unpin, [], query)
    }

    /// Evicts until at least `pages` pages have left the index; returns how many did.
    pub fn prefix_evict(&mut self, pages: i64) -> Result<i64> {
        // SAFETY: exclusive, one output.
        check_out(0, |out, error| unsafe { (loaded().prefix_evict)(self.as_mut_ptr(), pages, out, error) })
    }

    /// Forgets the whole index (new weights). Sequences keep their pages.
    pub fn prefix_reset(&mut self) -> Result<()> {
        // SAFETY: exclusive.
        check(|error| unsafe { (loaded().prefix_reset)(self.as_mut_ptr(), error) })
    }

    /// Gives a namespace a quota of bytes in the index; 0: none.
    pub fn prefix_quota_set(&mut self, salt: &[u8], max_bytes: u64) -> Result<()> {
        // SAFETY: exclusive; bytes with their length.
        check(|error| unsafe {
            (loaded().prefix_quota_set)(self.as_mut_ptr(), salt.as_ptr().cast(), salt.len(), max_bytes, error)
        })
    }
}
