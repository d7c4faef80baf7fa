//! Tiers: blocks of the prefix index in files, or on servers that several machines share.

use crate::error::{check, Result};
use crate::files::{c_text, model_text, optional, path_text};
use crate::kinds::Tier;
use crate::library::loaded;
use crate::CacheRef;
use kvcache_sys as sys;
use std::path::Path;
use std::time::Duration;

/// What both kinds of tiers have in common. The default is right for one model on one machine.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct TierOptions {
    /// The model and its weights: the layout of a cache says nothing of weights.
    pub model_id: Option<String>,
    /// The tensor-parallel rank, where ranks have pages of the same layout.
    pub shard: i32,
    /// Memory for blocks that wait to be written; 0: 64 MiB.
    pub queue_bytes: u64,
    /// How long a call waits for the tier, beside 8 ms per MiB; zero: a second.
    pub get_timeout: Duration,
}

/// A tier on servers of the Redis protocol.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct RedisOptions {
    /// What files have too.
    pub tier: TierOptions,
    /// For AUTH.
    pub username: Option<String>,
    /// For AUTH.
    pub password: Option<String>,
    /// How long a write may take; zero: a second.
    pub put_timeout: Duration,
    /// How long a connection may take; zero: a second.
    pub connect_timeout: Duration,
    /// How long a block is kept, in whole seconds; zero: until the server evicts it.
    pub ttl: Duration,
}

/// Counters of a tier since it was attached; see `kvc_tier_stats`.
pub type TierStats = sys::kvc_tier_stats;

fn millis(time: Duration) -> i32 {
    i32::try_from(time.as_millis()).unwrap_or(i32::MAX)
}

impl CacheRef {
    /// Keeps published blocks in files of `folder`, at most `byte_limit` bytes. One cache at a time uses a folder.
    pub fn attach_file_tier(
        &mut self,
        folder: impl AsRef<Path>,
        byte_limit: u64,
        options: &TierOptions,
    ) -> Result<()> {
        let folder = path_text(folder.as_ref())?;
        let desc = sys::kvc_tier_desc {
            tier: sys::KVC_TIER_FILE,
            address: folder.as_ptr(),
            byte_limit,
            ..tier_desc(options)
        };
        self.attach_tier(desc, options)
    }

    /// Keeps published blocks on servers of the Redis protocol: `"host:port"`, several separated by commas. A
    /// cluster is followed where its slots go.
    pub fn attach_redis_tier(&mut self, address: &str, options: &RedisOptions) -> Result<()> {
        let address = c_text("the address", address.as_bytes())?;
        let login = |text: &Option<String>, what: &str| -> Result<_> {
            text.as_ref().map(|text| c_text(what, text.as_bytes())).transpose()
        };
        let username = login(&options.username, "username")?;
        let password = login(&options.password, "password")?;
        let desc = sys::kvc_tier_desc {
            tier: sys::KVC_TIER_REDIS,
            address: address.as_ptr(),
            put_ms: millis(options.put_timeout),
            connect_ms: millis(options.connect_timeout),
            ttl_s: i64::try_from(options.ttl.as_secs()).unwrap_or(i64::MAX),
            username: optional(&username),
            password: optional(&password),
            ..tier_desc(&options.tier)
        };
        self.attach_tier(desc, &options.tier)
    }

    fn attach_tier(&mut self, mut desc: sys::kvc_tier_desc, options: &TierOptions) -> Result<()> {
        let model_id = model_text(options.model_id.as_deref())?;
        desc.model_id = optional(&model_id);
        // SAFETY: exclusive; texts that live as long as the call.
        check(|error| unsafe { (loaded().tier_attach)(self.as_mut_ptr(), &desc, error) })
    }

    /// Writes what waits, and closes the tier.
    pub fn detach_tier(&mut self, tier: Tier) -> Result<()> {
        // SAFETY: exclusive.
        check(|error| unsafe { (loaded().tier_detach)(self.as_mut_ptr(), tier.to_raw(), error) })
    }

    /// Waits until the blocks that were published so far are written or dropped; `None`: as long as it takes.
    pub fn flush_tiers(&self, timeout: Option<Duration>) -> Result<()> {
        let timeout = timeout.map_or(-1, |time| i64::try_from(time.as_millis()).unwrap_or(i64::MAX));
        // SAFETY: shared.
        check(|error| unsafe { (loaded().tier_flush)(self.as_ptr(), timeout, error) })
    }

    /// The counters of an attached tier.
    pub fn tier_stats(&self, tier: Tier) -> Result<TierStats> {
        let mut stats = TierStats::default();
        // SAFETY: shared; a struct of the size that it says.
        check(|error| unsafe { (loaded().tier_stats_get)(self.as_ptr(), tier.to_raw(), &mut stats, error) })?;
        Ok(stats)
    }
}

fn tier_desc(options: &TierOptions) -> sys::kvc_tier_desc {
    sys::kvc_tier_desc {
        shard: options.shard,
        queue_bytes: options.queue_bytes,
        get_ms: millis(options.get_timeout),
        ..Default::default()
    }
}
