//! Loading the library at run time. One test, because a process finds its library once.

#![cfg(all(feature = "dlopen", unix))]

use kvcache::{Cache, Config, Layer, Status};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A library of another version: it has the functions, but serves nobody.
const OLD: &str = r#"
unsigned kvc_abi_version(void) { return 0; }
const char *kvc_version_string(void) { return "0.0.9 old"; }
const void *kvc_get_api(unsigned version) { (void)version; return 0; }
"#;

fn old_library(folder: &Path) -> PathBuf {
    let (source, library) = (folder.join("old.c"), folder.join("libold.so"));
    std::fs::write(&source, OLD).unwrap();
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let made = Command::new(compiler).args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status();
    assert!(made.unwrap().success());
    library
}

#[test]
fn a_missing_or_old_library_is_named_with_path_and_versions() {
    // SAFETY: libkvcache, or something that looks like it enough for this.
    let load = |path: &Path| unsafe { kvcache::load(path) };

    let missing = load(Path::new("no/such/libkvcache.so.0")).unwrap_err();
    assert_eq!(missing.status(), Status::Io);
    for part in ["no/such/libkvcache.so.0", "KVCACHE_LIB or to kvcache::load"] {
        assert!(missing.message().contains(part), "{missing} lacks {part}");
    }

    let path = old_library(Path::new(env!("CARGO_TARGET_TMPDIR")));
    let old = load(&path).unwrap_err();
    assert_eq!(old.status(), Status::Version);
    for part in [&*path.to_string_lossy(), "0.0.9 old", "ABI 0.0", "ABI 0.1"] {
        assert!(old.message().contains(part), "{old} lacks {part}");
    }

    // The first use loads the real one: KVCACHE_LIB, or what the system finds.
    let config = Config::new(vec![Layer::attention(1, 1, 4)]).num_pages(4);
    assert!(Cache::with_config(&config).unwrap().is_empty());
    load(Path::new("anything now")).unwrap();
}
