//! Finds libkvcache and tells cargo how to link it. In this order:
//!
//! 1. Documentation (`DOCS_RS`), or the feature `dlopen`: nothing is linked.
//! 2. `KVCACHE_LIB_DIR`: the folder that holds the library.
//! 3. `pkg-config`, within the range of versions whose ABI these declarations follow. `KVCACHE_NO_PKG_CONFIG`
//!    skips it.
//! 4. The feature `vendored`: build it with cmake from `KVCACHE_SOURCE_DIR`, or from the repository that this
//!    crate lies in. `KVCACHE_NO_VENDOR` skips it, because no dependant can turn a feature off.
//! 5. Leave it to the linker: `cargo check` and documentation need no library, and a missing one is the
//!    linker's message.
//!
//! The feature `static` links libkvcache.a. Dependants read `DEP_KVCACHE_LIB_DIR` and `DEP_KVCACHE_INCLUDE`.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

const OLDEST: &str = "0.1.0";
const TOO_NEW: &str = "1.0.0";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    for name in [
        "DOCS_RS",
        "KVCACHE_LIB_DIR",
        "KVCACHE_NO_PKG_CONFIG",
        "KVCACHE_NO_VENDOR",
        "KVCACHE_SOURCE_DIR",
        "PKG_CONFIG_PATH",
    ] {
        println!("cargo::rerun-if-env-changed={name}");
    }
    if env::var_os("DOCS_RS").is_some() || feature("DLOPEN") {
        return;
    }
    if let Some(folder) = env::var_os("KVCACHE_LIB_DIR") {
        let folder = PathBuf::from(folder);
        let include = folder.parent().map(|prefix| prefix.join("include")).filter(|path| path.is_dir());
        return link(Some(&folder), include.as_deref());
    }
    if env::var_os("KVCACHE_NO_PKG_CONFIG").is_none() && pkg_config() {
        return;
    }
    if feature("VENDORED") && env::var_os("KVCACHE_NO_VENDOR").is_none() {
        let prefix = vendored();
        return link(Some(&prefix.join("lib")), Some(&prefix.join("include")));
    }
    link(None, None);
}

fn feature(name: &str) -> bool {
    env::var_os(format!("CARGO_FEATURE_{name}")).is_some()
}

fn link(lib_dir: Option<&Path>, include: Option<&Path>) {
    if let Some(folder) = lib_dir {
        println!("cargo::rustc-link-search=native={}", folder.display());
        println!("cargo::metadata=lib_dir={}", folder.display());
    }
    if let Some(folder) = include {
        println!("cargo::metadata=include={}", folder.display());
    }
    if feature("STATIC") {
        println!("cargo::rustc-link-lib=static=kvcache");
        // What the archive needs beside itself: SHA-256 and the C++ run time.
        for library in ["crypto", "stdc++", "m", "dl", "pthread"] {
            println!("cargo::rustc-link-lib={library}");
        }
    } else {
        println!("cargo::rustc-link-lib=kvcache");
    }
}

/// True when pkg-config knows a library that fits.
fn pkg_config() -> bool {
    let program = env::var_os("PKG_CONFIG").unwrap_or_else(|| "pkg-config".into());
    let ask = |arguments: &[&str]| {
        let output = Command::new(&program).args(arguments).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| text.trim().to_owned())
    };
    let range = [format!("kvcache >= {OLDEST}"), format!("kvcache < {TOO_NEW}")];
    if ask(&["--exists", &range[0], &range[1]]).is_none() {
        if let Some(version) = ask(&["--modversion", "kvcache"]) {
            println!(
                "cargo::warning=pkg-config has kvcache {version}; this crate takes {OLDEST} up to {TOO_NEW}"
            );
        }
        return false;
    }
    // Empty for the system's folders, which must not be put in front of the linker's own order.
    let lib_dir = ask(&["--libs-only-L", "kvcache"]);
    let lib_dir = lib_dir.as_deref().and_then(|flags| flags.strip_prefix("-L")).map(Path::new);
    let include = ask(&["--variable=includedir", "kvcache"]);
    link(lib_dir, include.as_deref().map(Path::new));
    true
}

/// Builds and installs the library below OUT_DIR; returns the prefix.
fn vendored() -> PathBuf {
    let source = env::var_os("KVCACHE_SOURCE_DIR").map(PathBuf::from).unwrap_or_else(|| {
        PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it")).join("../../..")
    });
    assert!(
        source.join("include/kvcache.h").is_file(),
        "feature `vendored`: {} is not the source of libkvcache; set KVCACHE_SOURCE_DIR, or install the \
         library and set KVCACHE_LIB_DIR",
        source.display()
    );
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let (build, prefix) = (out.join("cmake"), out.join("prefix"));
    for folder in ["src", "kernels", "include"] {
        println!("cargo::rerun-if-changed={}", source.join(folder).display());
    }
    let jobs = env::var("NUM_JOBS").unwrap_or_else(|_| "1".into());
    let off = ["TESTS", "TOOLS", "BENCH", "EXAMPLES"].map(|part| format!("-DKVCACHE_BUILD_{part}=OFF"));
    let mut configure = Command::new("cmake");
    configure.arg("-S").arg(&source).arg("-B").arg(&build).args(off);
    configure.arg("-DCMAKE_BUILD_TYPE=Release").arg("-DCMAKE_INSTALL_LIBDIR=lib");
    configure.arg(format!("-DCMAKE_INSTALL_PREFIX={}", prefix.display()));
    run(&mut configure);
    run(Command::new("cmake").arg("--build").arg(&build).args(["-j", &jobs]));
    run(Command::new("cmake").arg("--install").arg(&build));
    prefix
}

fn run(command: &mut Command) {
    let status = command.status().unwrap_or_else(|error| panic!("feature `vendored`: {command:?}: {error}"));
    assert!(status.success(), "feature `vendored`: {command:?}: {status}");
}
