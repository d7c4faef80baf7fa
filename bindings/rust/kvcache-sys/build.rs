//! Finds libkvcache and tells cargo how to link it. In this order:
//!
//! 1. Documentation (`DOCS_RS`), or the feature `dlopen`: nothing is linked.
//! 2. `KVCACHE_LIB_DIR`: the folder that holds the library.
//! 3. `pkg-config`, within the range of versions whose ABI these declarations follow. `KVCACHE_NO_PKG_CONFIG`
//!    skips it.
//! 4. The feature `vendored`: build the archive with cmake from the sources inside this crate, or from
//!    `KVCACHE_SOURCE_DIR`. `KVCACHE_NO_VENDOR` skips it, because no dependant can turn a feature off.
//! 5. Leave it to the linker: `cargo check` and documentation need no library. A warning names the ways out
//!    when the linker does not know the library either.
//!
//! The feature `static` links libkvcache.a. Dependants read `DEP_KVCACHE_LIB_DIR` and `DEP_KVCACHE_INCLUDE`.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

const OLDEST: &str = "0.1.0";
const TOO_NEW: &str = "1.0.0";

/// What the archive needs beside itself where no kvcache.pc says it: SHA-256 and the C++ run time.
const PRIVATE_LIBRARIES: [&str; 5] = ["crypto", "stdc++", "m", "dl", "pthread"];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    for name in [
        "CC",
        "DOCS_RS",
        "KVCACHE_LIB_DIR",
        "KVCACHE_NO_PKG_CONFIG",
        "KVCACHE_NO_VENDOR",
        "KVCACHE_SOURCE_DIR",
        "PKG_CONFIG",
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
        return link(Some(&folder), include.as_deref(), feature("STATIC"));
    }
    if env::var_os("KVCACHE_NO_PKG_CONFIG").is_none() && pkg_config() {
        return;
    }
    #[cfg(feature = "vendored")]
    if env::var_os("KVCACHE_NO_VENDOR").is_none() {
        let prefix = vendored::build();
        return link(Some(&prefix.join("lib")), Some(&prefix.join("include")), true);
    }
    warn_when_the_linker_finds_nothing();
    link(None, None, feature("STATIC"));
}

fn feature(name: &str) -> bool {
    env::var_os(format!("CARGO_FEATURE_{name}")).is_some()
}

fn link(lib_dir: Option<&Path>, include: Option<&Path>, archive: bool) {
    if let Some(folder) = lib_dir {
        println!("cargo::rustc-link-search=native={}", folder.display());
        println!("cargo::metadata=lib_dir={}", folder.display());
    }
    if let Some(folder) = include {
        println!("cargo::metadata=include={}", folder.display());
    }
    if !archive {
        println!("cargo::rustc-link-lib=kvcache");
        return lib_dir.into_iter().for_each(warn_when_no_loader_looks_in);
    }
    println!("cargo::rustc-link-lib=static=kvcache");
    let described = lib_dir.and_then(|folder| private_libraries(&folder.join("pkgconfig/kvcache.pc")));
    for library in described.unwrap_or_else(|| PRIVATE_LIBRARIES.map(String::from).to_vec()) {
        link_private(&library);
    }
}

/// The libraries of the line `Libs.private` of an installed kvcache.pc.
fn private_libraries(description: &Path) -> Option<Vec<String>> {
    println!("cargo::rerun-if-changed={}", description.display());
    let text = std::fs::read_to_string(description).ok()?;
    let flags = text.lines().find_map(|line| line.strip_prefix("Libs.private:"))?;
    Some(flags.split_whitespace().filter_map(|flag| flag.strip_prefix("-l")).map(String::from).collect())
}

/// libcrypto as an archive where there is one: then the program needs no libcrypto.so.
fn link_private(library: &str) {
    let archive = if library == "crypto" { found_by_compiler("libcrypto.a") } else { None };
    if let Some(folder) = archive.as_deref().and_then(Path::parent) {
        println!("cargo::rustc-link-search=native={}", folder.display());
        println!("cargo::rustc-link-lib=static=crypto");
    } else {
        println!("cargo::rustc-link-lib={library}");
    }
}

/// Where the C compiler, and so the linker, finds a library.
fn found_by_compiler(file: &str) -> Option<PathBuf> {
    let compiler = env::var_os("CC").unwrap_or_else(|| "cc".into());
    let output = Command::new(compiler).arg(format!("-print-file-name={file}")).output().ok()?;
    // The answer is the bare name when there is none.
    let path = PathBuf::from(String::from_utf8(output.stdout).ok()?.trim());
    path.is_absolute().then_some(path)
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
    link(lib_dir, include.as_deref().map(Path::new), feature("STATIC"));
    true
}

/// A program that is linked may still not start: cargo hands no run path of a library on to programs.
fn warn_when_no_loader_looks_in(folder: &Path) {
    let name = folder.display().to_string();
    let paths = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let flags = env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    let run_path = flags.contains("rpath") && flags.contains(&name);
    if !run_path && !env::split_paths(&paths).any(|path| path == folder) {
        println!(
            "cargo::warning=programs find libkvcache.so.0 in {name} with LD_LIBRARY_PATH={name}, or \
             RUSTFLAGS=-Clink-arg=-Wl,-rpath,{name}; or link the archive: feature `static`"
        );
    }
}

/// Cargo shows this for crates of a workspace, and for others when the build fails.
fn warn_when_the_linker_finds_nothing() {
    let file = if feature("STATIC") { "libkvcache.a" } else { "libkvcache.so" };
    if found_by_compiler(file).is_none() {
        println!(
            "cargo::warning={file} was not found. Ways out: (1) KVCACHE_LIB_DIR=<folder that holds it>; \
             (2) install libkvcache where pkg-config finds kvcache.pc (PKG_CONFIG_PATH); (3) the feature \
             `vendored`, which builds it from the sources in this crate. The feature `dlopen` needs no \
             library until the program runs."
        );
    }
}

#[cfg(feature = "vendored")]
mod vendored {
    use std::env;
    use std::path::PathBuf;

    /// Builds and installs the library below OUT_DIR; returns the prefix.
    pub fn build() -> PathBuf {
        let crate_dir = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
        let source = match env::var_os("KVCACHE_SOURCE_DIR") {
            Some(folder) => PathBuf::from(folder),
            None => crate_dir.join("libkvcache"),
        };
        assert!(
            source.join("include/kvcache.h").is_file(),
            "feature `vendored`: {} is not the source of libkvcache; set KVCACHE_SOURCE_DIR, or install the \
             library and set KVCACHE_LIB_DIR",
            source.display()
        );
        for path in ["CMakeLists.txt", "include", "kernels", "src"] {
            println!("cargo::rerun-if-changed={}", source.join(path).display());
        }
        let mut config = cmake::Config::new(&source);
        for part in ["TESTS", "TOOLS", "BENCH", "EXAMPLES"] {
            config.define(format!("KVCACHE_BUILD_{part}"), "OFF");
        }
        // Modules lie where kvc_module_path_set says, not inside a crate.
        for module in ["ROCKSDB", "REDIS", "UCX"] {
            config.define(format!("KVCACHE_{module}"), "OFF");
        }
        // Nothing is downloaded: what is not installed is cmake's message.
        config.define("FETCHCONTENT_FULLY_DISCONNECTED", "ON");
        // This crate's own declarations of DLPack's structs.
        config.define("KVCACHE_DLPACK_INCLUDE_DIR", crate_dir.join("include"));
        config.profile("Release").define("CMAKE_INSTALL_LIBDIR", "lib").build()
    }
}
