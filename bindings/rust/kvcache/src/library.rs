//! The library behind this crate: found once, asked for the version that this crate follows, then used
//! through its function table.

use crate::element::Device;
use crate::error::{check, Error, Result, Status};
use kvcache_sys as sys;
use std::ffi::{CStr, CString};
use std::sync::atomic::{AtomicPtr, Ordering};

static TABLE: AtomicPtr<sys::kvc_api> = AtomicPtr::new(std::ptr::null_mut());

/// The function table; finds the library at the first call.
#[inline]
pub(crate) fn api() -> Result<&'static sys::kvc_api> {
    let table = TABLE.load(Ordering::Acquire);
    if table.is_null() {
        return find();
    }
    // SAFETY: the library's table is static, and the library is never unloaded.
    Ok(unsafe { &*table })
}

/// The function table, for those who hold an object of the library.
#[inline]
pub(crate) fn loaded() -> &'static sys::kvc_api {
    // SAFETY: every object was made through `api`, which has stored the table; see there.
    unsafe { &*TABLE.load(Ordering::Acquire) }
}

type GetApi = unsafe extern "C" fn(u32) -> *const sys::kvc_api;

/// Asks a library for the table of the version that this crate was written for.
fn accept(get_api: GetApi, abi_version: u32, version: &str, path: &str) -> Result<&'static sys::kvc_api> {
    let as_text = |version: u32| format!("{}.{}", version >> 16, version & 0xffff);
    let refuse = |why: &str| {
        Error::new(
            Status::Version,
            format!(
                "{path} is libkvcache {version} (ABI {}), but this program needs ABI {}: {why}",
                as_text(abi_version),
                as_text(sys::KVC_ABI_VERSION)
            ),
        )
    };
    // SAFETY: takes a number, returns NULL or a static table.
    let table = unsafe { get_api(sys::KVC_ABI_VERSION) };
    if table.is_null() {
        return Err(refuse("install a matching library, or rebuild the program for this one"));
    }
    // SAFETY: every version of the table begins with its size.
    if unsafe { (*table).struct_size } < size_of::<sys::kvc_api>() {
        return Err(refuse("its function table is shorter"));
    }
    TABLE.store(table.cast_mut(), Ordering::Release);
    // SAFETY: as above; the table is static.
    Ok(unsafe { &*table })
}

#[cfg(not(feature = "dlopen"))]
#[cold]
fn find() -> Result<&'static sys::kvc_api> {
    // SAFETY: no arguments, static string.
    let (abi_version, version) =
        unsafe { (sys::kvc_abi_version(), CStr::from_ptr(sys::kvc_version_string())) };
    accept(sys::kvc_get_api, abi_version, &version.to_string_lossy(), "the linked library")
}

#[cfg(feature = "dlopen")]
#[cold]
fn find() -> Result<&'static sys::kvc_api> {
    // KVCACHE_LIBRARY is the older name.
    let given = std::env::var_os("KVCACHE_LIB").or_else(|| std::env::var_os("KVCACHE_LIBRARY"));
    open(given.as_deref().unwrap_or(std::ffi::OsStr::new(DEFAULT_LIBRARY)))
}

#[cfg(all(feature = "dlopen", not(target_os = "macos"), not(windows)))]
const DEFAULT_LIBRARY: &str = "libkvcache.so.0";
#[cfg(all(feature = "dlopen", target_os = "macos"))]
const DEFAULT_LIBRARY: &str = "libkvcache.0.dylib";
#[cfg(all(feature = "dlopen", windows))]
const DEFAULT_LIBRARY: &str = "kvcache.dll";

#[cfg(feature = "dlopen")]
fn open(path: &std::ffi::OsStr) -> Result<&'static sys::kvc_api> {
    let shown = path.to_string_lossy();
    let broken = |error: libloading::Error| {
        Error::new(
            Status::Io,
            format!(
                "cannot load libkvcache from {shown}: {error}; install it, or give its path in \
                 KVCACHE_LIB or to kvcache::load"
            ),
        )
    };
    // SAFETY: the library has no initialisers with effects of their own.
    #[cfg(unix)]
    let library = unsafe {
        use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
        Library::open(Some(path), RTLD_NOW | RTLD_LOCAL)
    };
    // SAFETY: as above.
    #[cfg(not(unix))]
    let library = unsafe { libloading::Library::new(path) };
    // Never unloaded: tables and exported tensors point into it.
    let library = std::mem::ManuallyDrop::new(library.map_err(broken)?);
    // SAFETY: the types are those of kvcache.h, and have been since its first version.
    unsafe {
        let abi_version =
            library.get::<unsafe extern "C" fn() -> u32>(b"kvc_abi_version\0").map_err(broken)?;
        let version = library
            .get::<unsafe extern "C" fn() -> *const std::ffi::c_char>(b"kvc_version_string\0")
            .map_err(broken)?;
        let get_api = library.get::<GetApi>(b"kvc_get_api\0").map_err(broken)?;
        accept(*get_api, abi_version(), &CStr::from_ptr(version()).to_string_lossy(), &shown)
    }
}

/// Loads the library from `path`. Without this call the first use loads `KVCACHE_LIB`, or else the
/// system's `libkvcache.so.0`. A library that was loaded before stays, whatever the path.
///
/// # Safety
/// A file at `path` that has the functions of libkvcache is libkvcache.
#[cfg(feature = "dlopen")]
pub unsafe fn load(path: impl AsRef<std::ffi::OsStr>) -> Result<()> {
    if TABLE.load(Ordering::Acquire).is_null() {
        open(path.as_ref())?;
    }
    Ok(())
}

/// Version and build of the library, for example "0.1.0 cpu".
pub fn version() -> Result<&'static str> {
    // SAFETY: static string.
    let text = unsafe { CStr::from_ptr((api()?.version_string)()) };
    Ok(text.to_str().unwrap_or("unknown"))
}

/// ABI of the library: (major, minor).
pub fn abi_version() -> Result<(u32, u32)> {
    // SAFETY: no arguments.
    let version = unsafe { (api()?.get_abi_version)() };
    Ok((version >> 16, version & 0xffff))
}

/// Does the build have a feature? False also for names it does not know; see `kvc_has_feature` for the names.
pub fn has_feature(name: &str) -> Result<bool> {
    let Ok(name) = CString::new(name) else { return Ok(false) };
    // SAFETY: a terminated string, borrowed for the call.
    Ok(unsafe { (api()?.has_feature)(name.as_ptr()) } == 1)
}

/// Says where modules lie (`libkvcache_cuda.so`): an absolute directory. Without this call that is the library's
/// own. Once a module is loaded, only the same path is accepted; see `kvc_module_path_set`.
pub fn set_module_path(path: impl AsRef<std::path::Path>) -> Result<()> {
    let api = api()?;
    let path = path.as_ref();
    let bytes = path.as_os_str().as_encoded_bytes();
    let text = CString::new(bytes).map_err(|_| {
        Error::new(Status::InvalidArgument, format!("path = {} holds a NUL byte", path.display()))
    })?;
    // SAFETY: a terminated string, borrowed for the call.
    check(|error| unsafe { (api.module_path_set)(text.as_ptr(), error) })
}

/// What the library can do on a device, in numbers; see `kvc_device_caps`.
pub type DeviceCaps = sys::kvc_device_caps;

/// What the library can do on a device. One without a back end in this build is not an error:
/// `backend_present` is 0.
pub fn device_query(device: Device) -> Result<DeviceCaps> {
    let api = api()?;
    let mut caps = DeviceCaps::default();
    // SAFETY: the struct says its size.
    check(|error| unsafe { (api.device_query)(device.raw(), &mut caps, error) })?;
    Ok(caps)
}

#[cfg(test)]
mod tests {
    use super::*;

    unsafe extern "C" fn serves_nobody(_: u32) -> *const sys::kvc_api {
        std::ptr::null()
    }

    /// A table of which there is nothing but its size.
    unsafe extern "C" fn short_table(_: u32) -> *const sys::kvc_api {
        static SIZE: usize = 16;
        std::ptr::from_ref(&SIZE).cast()
    }

    #[test]
    fn a_library_of_another_version_is_refused_with_both() {
        for get_api in [serves_nobody as GetApi, short_table] {
            let error = accept(get_api, 2 << 16 | 7, "2.7.1 cpu", "the linked library").unwrap_err();
            assert_eq!(error.status(), Status::Version);
            for part in ["the linked library", "2.7.1 cpu", "ABI 2.7", "ABI 0.1"] {
                assert!(error.message().contains(part), "{error} lacks {part}");
            }
        }
    }
}
