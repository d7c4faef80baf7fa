//! Every case of `tests/conformance` on every instruction set that the machine has, through the safe
//! interface; see the README there. Calls that this crate's types do not let one write (on a forward that has
//! ended, with a kind that does not exist) are counted: a scenario never expects them to succeed.

mod calls;
mod case;
mod config;
mod player;

use case::{value, Fields, Json};
use kvcache::{CpuIsa, Device, PrefixKey};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::{Path, PathBuf};

fn folder(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../tests/conformance").join(name)
}

fn cases() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder("cases")).unwrap();
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    paths.sort();
    paths
}

fn read(path: &Path) -> Json {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn instruction_sets() -> Vec<CpuIsa> {
    let isas = kvcache::device_query(Device::CPU).unwrap().isas;
    let all = [CpuIsa::Reference, CpuIsa::Scalar, CpuIsa::Avx2, CpuIsa::Avx512, CpuIsa::Avx512Bf16];
    all.into_iter().filter(|isa| isas >> isa.to_raw().0 & 1 == 1).collect()
}

#[test]
fn every_scenario_holds_on_every_instruction_set() {
    let (mut runs, mut inexpressible, mut failures) = (0, 0, Vec::new());
    for path in cases() {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let json = read(&path);
        for isa in instruction_sets() {
            let mut step = 0;
            runs += 1;
            case::forget_reads();
            let case = Fields(&json);
            assert!(case.text("name") == name && case.has("about"), "a case is named as its file");
            match catch_unwind(AssertUnwindSafe(|| player::run(case, isa, &mut step))) {
                Ok(skipped) => inexpressible += skipped,
                Err(_) => {
                    let text: String = json["steps"][step].to_string().chars().take(300).collect();
                    failures.push(format!("{name} on {isa:?}, step {step}: {text}"));
                }
            }
        }
    }
    println!("{runs} runs, {inexpressible} steps that cannot be written in Rust");
    assert!(failures.is_empty(), "{} of {runs} failed:\n{}", failures.len(), failures.join("\n"));
    assert!(runs >= 320, "cases are missing: {runs} runs");
}

#[test]
fn the_generator_gives_the_numbers_that_the_readme_states() {
    let found = [value(2, 0, 0, 0, 0), value(3, 1, 5, 2, 3), value(1, 0, 1000, 1, 7)];
    assert_eq!(found, [-0.109375, -0.4375, -0.78125]);
}

#[test]
#[should_panic(expected = "unknown key 'unheard_of'")]
fn a_key_that_nobody_reads_is_refused() {
    let mut json = read(&cases()[0]);
    json["steps"][0]["unheard_of"] = 1.into();
    let case = Fields(&json);
    assert!(case.has("name") && case.has("about"));
    player::run(case, CpuIsa::Reference, &mut 0);
}

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn keys_of_prefix_blocks_are_those_of_every_language() {
    let json = read(&folder("vectors/prefix_hash.json"));
    let cases = Fields(&json).list("cases");
    assert!(cases.len() >= 5, "cases are missing");
    for case in cases.iter().map(Fields) {
        let data: Vec<_> = case.list("keys").iter().map(|key| bytes(Fields(key).text("data"))).collect();
        let keys = case.list("keys").iter().map(Fields).zip(&data);
        let keys: Vec<_> = keys
            .map(|(key, data)| PrefixKey { kind: key.int("type") as u32, offset: key.int("offset"), data })
            .collect();
        let (block, salt) = (case.int("block_tokens") as i32, bytes(case.text("salt")));
        let hashes = kvcache::prefix_hash(&case.ints32("tokens"), block, &salt, &keys).unwrap();
        let hashes: Vec<_> = hashes.iter().map(|hash| hex(hash)).collect();
        let wanted: Vec<_> = case.list("hashes").iter().map(|hash| hash.as_str().unwrap()).collect();
        assert_eq!(hashes, wanted, "{}", case.text("name"));
    }
}
