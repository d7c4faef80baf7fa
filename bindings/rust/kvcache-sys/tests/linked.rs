//! The library that is linked answers, in the version that these declarations follow. Every function is
//! reached by its symbol.

#![cfg(not(feature = "dlopen"))]

use kvcache_sys::*;
use std::ffi::CStr;

#[test]
fn the_linked_library_serves_this_version() {
    // SAFETY: no arguments that could be wrong; the strings are static.
    unsafe {
        assert_eq!(kvc_abi_version() >> 16, KVC_ABI_VERSION_MAJOR);
        let api = kvc_get_api(KVC_ABI_VERSION);
        assert!(!api.is_null());
        assert!((*api).struct_size >= size_of::<kvc_api>());
        assert_eq!(CStr::from_ptr(kvc_status_name(KVC_E_NO_PAGES)).to_str(), Ok("KVC_E_NO_PAGES"));
    }
}

#[test]
fn a_bad_configuration_fills_the_error() {
    let config = kvc_config::default();
    let mut error = kvc_error::default();
    let mut plan = std::ptr::null_mut();
    // SAFETY: a configuration without layers is complete; outputs are valid for the call.
    let status = unsafe { kvc_plan_create(&config, &mut plan, &mut error) };
    assert_eq!(status, KVC_E_OUT_OF_RANGE);
    assert_eq!(error.status, status);
    // SAFETY: the library terminates the message.
    let message = unsafe { CStr::from_ptr(error.message.as_ptr()) };
    assert!(message.to_str().unwrap().contains("num_layers"), "{message:?}");
}
