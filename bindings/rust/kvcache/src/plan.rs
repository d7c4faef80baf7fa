//! A model's memory, planned: bytes and pages, before anything is allocated.

use crate::error::{check, check_out, Result};
use crate::host::SharedExecutor;
use crate::library::{api, loaded};
use crate::raw_config::RawConfig;
use crate::Config;
use kvcache_sys as sys;
use std::ffi::c_char;
use std::ptr::{null_mut, NonNull};

/// Numbers of a plan; see `kvc_plan_info`.
pub type PlanInfo = sys::kvc_plan_info;
/// Numbers of a group of layers that share page tables; see `kvc_group_info`.
pub type GroupInfo = sys::kvc_group_info;
/// A layer as planned, defaults filled in; see `kvc_layer_info`.
pub type LayerInfo = sys::kvc_layer_info;

/// Planned memory of a model: immutable, freely shared between threads.
#[derive(Debug)]
pub struct Plan {
    raw: NonNull<sys::kvc_plan>,
    executor: Option<SharedExecutor>,
}

// SAFETY: a kvc_plan is immutable.
unsafe impl Send for Plan {}
// SAFETY: as above.
unsafe impl Sync for Plan {}

impl Plan {
    /// Checks a configuration and plans its memory.
    pub fn new(config: &Config) -> Result<Self> {
        let api = api()?;
        let raw_config = RawConfig::new(config)?;
        let mut raw = null_mut();
        // SAFETY: the structs and all they point at live until the end of this function; the library copies
        // them.
        check(|error| unsafe { (api.plan_create)(&raw_config.config, &mut raw, error) })?;
        let raw = NonNull::new(raw).expect("a plan on success");
        Ok(Plan { raw, executor: config.executor.clone() })
    }

    pub(crate) fn as_ptr(&self) -> *const sys::kvc_plan {
        self.raw.as_ptr()
    }

    pub(crate) fn executor(&self) -> Option<SharedExecutor> {
        self.executor.clone()
    }

    /// Sizes of the whole.
    pub fn info(&self) -> Result<PlanInfo> {
        let mut info = PlanInfo::default();
        // SAFETY: the struct says its size.
        check(|error| unsafe { (loaded().plan_info_get)(self.as_ptr(), &mut info, error) })?;
        Ok(info)
    }

    /// Sizes of a group of layers.
    pub fn group(&self, group: usize) -> Result<GroupInfo> {
        let mut info = GroupInfo::default();
        let group = crate::index(group);
        // SAFETY: the struct says its size.
        check(|error| unsafe { (loaded().plan_group_get)(self.as_ptr(), group, &mut info, error) })?;
        Ok(info)
    }

    /// A layer, by its global id.
    pub fn layer(&self, layer: usize) -> Result<LayerInfo> {
        let mut info = LayerInfo::default();
        let layer = crate::index(layer);
        // SAFETY: the struct says its size.
        check(|error| unsafe { (loaded().plan_layer_get)(self.as_ptr(), layer, &mut info, error) })?;
        Ok(info)
    }

    /// Pages that a byte budget holds.
    pub fn pages_for(&self, byte_budget: u64) -> Result<i64> {
        // SAFETY: one output.
        check_out(0, |out, error| unsafe {
            (loaded().plan_pages_for)(self.as_ptr(), byte_budget, out, error)
        })
    }

    /// Longest single request, in tokens, that a byte budget holds.
    pub fn max_tokens(&self, byte_budget: u64) -> Result<i64> {
        // SAFETY: one output.
        check_out(0, |out, error| unsafe {
            (loaded().plan_max_tokens)(self.as_ptr(), byte_budget, out, error)
        })
    }

    /// Pages that one request of so many tokens needs at most while it is computed.
    pub fn request_pages(&self, num_tokens: i64) -> Result<i64> {
        // SAFETY: one output.
        check_out(0, |out, error| unsafe {
            (loaded().plan_request_pages)(self.as_ptr(), num_tokens, out, error)
        })
    }

    /// A text that is equal exactly where pages can move between two caches, and state files be loaded.
    pub fn fingerprint(&self) -> Result<String> {
        // SAFETY: a buffer and its length.
        text(|buffer, len, error| unsafe { (loaded().layout_fingerprint)(self.as_ptr(), buffer, len, error) })
    }

    /// The plan as a table for people.
    pub fn describe(&self) -> Result<String> {
        // SAFETY: a buffer and its length.
        text(|buffer, len, error| unsafe { (loaded().plan_describe)(self.as_ptr(), buffer, len, error) })
    }

    /// The plan as JSON.
    pub fn to_json(&self) -> Result<String> {
        // SAFETY: a buffer and its length.
        text(|buffer, len, error| unsafe { (loaded().plan_to_json)(self.as_ptr(), buffer, len, error) })
    }

    /// Pages that every rank of one model has: the least of the plans'. Give each rank's plan this number.
    pub fn min_pages(plans: &[&Plan]) -> Result<i64> {
        let api = api()?;
        let raw: Vec<_> = plans.iter().map(|plan| plan.as_ptr()).collect();
        // SAFETY: an array of live plans and its length.
        check_out(0, |out, error| unsafe { (api.plan_min_pages)(raw.as_ptr(), raw.len(), out, error) })
    }
}

impl Drop for Plan {
    fn drop(&mut self) {
        // SAFETY: ours, once.
        unsafe { (loaded().plan_destroy)(self.raw.as_ptr()) };
    }
}

/// A string by two calls.
pub(crate) fn text(
    call: impl Fn(*mut c_char, *mut usize, *mut sys::kvc_error) -> sys::kvc_status,
) -> Result<String> {
    let bytes = array(0u8, |buffer, len, error| call(buffer.cast(), len, error))?;
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    Ok(String::from_utf8_lossy(&bytes[..end]).into_owned())
}

/// An array by two calls: one for the count, one for the elements.
pub(crate) fn array<T: Copy>(
    empty: T,
    call: impl Fn(*mut T, *mut usize, *mut sys::kvc_error) -> sys::kvc_status,
) -> Result<Vec<T>> {
    let mut count = 0;
    check(|error| call(null_mut(), &mut count, error))?;
    let mut values = vec![empty; count];
    check(|error| call(values.as_mut_ptr(), &mut count, error))?;
    values.truncate(count);
    Ok(values)
}
