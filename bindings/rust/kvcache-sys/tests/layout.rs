//! These declarations against what the C compiler found in the header: `tests/abi/layout.json` and
//! `tests/abi/symbols.txt`.

use serde_json::Value;
use std::fs;
use std::path::PathBuf;

fn abi(file: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../tests/abi").join(file);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn layout() -> Value {
    serde_json::from_str(&abi("layout.json")).unwrap()
}

/// A field whose name is a word of Rust has an underscore at its end.
fn c_name(field: &str) -> &str {
    field.strip_suffix('_').unwrap_or(field)
}

#[test]
fn every_struct_has_the_layout_of_the_c_compiler() {
    let layout = layout();
    let expected = layout["structs"].as_object().unwrap();
    let mut names: Vec<_> = kvcache_sys::layout::LAYOUTS.iter().map(|entry| entry.0).collect();
    names.sort_unstable();
    let mut c_names: Vec<_> = expected.keys().map(String::as_str).collect();
    c_names.sort_unstable();
    assert_eq!(names, c_names);
    for (name, size, align, fields) in kvcache_sys::layout::LAYOUTS {
        let expected = &expected[*name];
        assert_eq!(*size as u64, expected["size"], "size of {name}");
        assert_eq!(*align as u64, expected["align"], "alignment of {name}");
        assert_eq!(fields.len(), expected["fields"].as_object().unwrap().len(), "fields of {name}");
        for (field, offset) in *fields {
            assert_eq!(*offset as u64, expected["fields"][c_name(field)][0], "offset of {name}.{field}");
        }
    }
}

/// All declarations of the crate, as text.
fn sources() -> String {
    [include_str!("../src/generated/types.rs"), include_str!("../src/generated/functions.rs")].concat()
}

#[test]
fn every_exported_symbol_is_declared_and_no_other() {
    let (symbols, sources) = (abi("symbols.txt"), sources());
    let declared: Vec<_> = sources
        .lines()
        .filter_map(|line| line.trim().strip_prefix("pub fn "))
        .map(|rest| rest.split('(').next().unwrap_or(rest))
        .collect();
    for symbol in symbols.lines() {
        assert!(declared.contains(&symbol), "{symbol} is not declared");
    }
    for symbol in &declared {
        assert!(symbols.lines().any(|exported| exported == *symbol), "{symbol} is not exported");
    }
    assert_eq!(declared.len(), symbols.lines().count());
}

#[test]
fn every_constant_has_its_number() {
    let sources = sources();
    for (name, number) in layout()["constants"].as_object().unwrap() {
        let found = sources.lines().any(|line| {
            let line = line.trim();
            line == format!("{name} = {number},")
                || (line.starts_with(&format!("pub const {name}:"))
                    && line.ends_with(&format!("= {number};")))
        });
        assert!(found, "{name} = {number}");
    }
}
