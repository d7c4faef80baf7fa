//! Every scenario of `tests/conformance` on every instruction set that the machine has, through the safe
//! interface; see the README there. Calls that this crate's types do not let one write (on a forward that has
//! ended, with a kind that does not exist) are counted: a scenario never expects them to succeed.

mod expectations;
mod json;
mod linear;
mod model;
mod rows;
mod schema;
mod session;
mod steps;
mod tensor;
mod values;

use json::Fields;
use kvcache::{CpuIsa, Device, PrefixKey};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::PathBuf;

fn folder(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../tests/conformance").join(name)
}

fn scenarios() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder("scenarios")).unwrap();
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    paths.sort();
    paths
}

fn instruction_sets() -> Vec<CpuIsa> {
    let isas = kvcache::device_query(Device::CPU).unwrap().isas;
    let all = [CpuIsa::Reference, CpuIsa::Scalar, CpuIsa::Avx2, CpuIsa::Avx512, CpuIsa::Avx512Bf16];
    all.into_iter().filter(|isa| isas >> isa.to_raw().0 & 1 == 1).collect()
}

#[test]
fn every_scenario_holds_on_every_instruction_set() {
    let (mut runs, mut inexpressible, mut failures) = (0, 0, Vec::new());
    for path in scenarios() {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let scenario = schema::load_scenario(&path);
        assert_eq!(scenario.text("name", ""), name, "a scenario is named as its file");
        for isa in instruction_sets() {
            let mut step = 0;
            runs += 1;
            match catch_unwind(AssertUnwindSafe(|| session::run(&scenario, isa, &mut step))) {
                Ok(skipped) => inexpressible += skipped,
                Err(_) => {
                    failures.push(format!("{name} on {isa:?}, step {step}: {}", scenario["steps"][step]))
                }
            }
        }
    }
    println!("{runs} runs, {inexpressible} steps that cannot be written in Rust");
    assert!(failures.is_empty(), "{} of {runs} failed:\n{}", failures.len(), failures.join("\n"));
    assert!(runs >= 120, "scenarios are missing: {runs} runs");
}

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn keys_of_prefix_blocks_are_those_of_every_language() {
    let file = json::parse(&std::fs::read_to_string(folder("vectors/prefix_hash.json")).unwrap());
    let cases = file.list("cases");
    assert!(cases.len() >= 5, "cases are missing");
    for case in cases {
        let tokens: Vec<i32> = case.ints("tokens").into_iter().map(|token| token as i32).collect();
        let data: Vec<_> = case.list("keys").iter().map(|key| bytes(key.text("data", ""))).collect();
        let key = |(key, data): (&json::Json, &'static [u8])| PrefixKey {
            kind: key.int("type", 0) as u32,
            offset: key.int("offset", 0),
            data,
        };
        let data = data.into_iter().map(|data| &*data.leak());
        let keys: Vec<_> = case.list("keys").iter().zip(data).map(key).collect();
        let salt = bytes(case.text("salt", ""));
        let block = case.int("block_tokens", 0) as i32;
        let hashes = kvcache::prefix_hash(&tokens, block, &salt, &keys).unwrap();
        let hashes: Vec<_> = hashes.iter().map(|hash| hex(hash)).collect();
        let wanted: Vec<_> = case.list("hashes").iter().map(|hash| hash.as_str().unwrap()).collect();
        assert_eq!(hashes, wanted, "{}", case.text("name", ""));
    }
}
