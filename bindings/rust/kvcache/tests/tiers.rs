//! Tiers: what another cache finds. Modules lie beside the library of the build folder.

mod common;

use common::{config, step, Folder};
use kvcache::{
    has_feature, AttnOptions, Batch, Cache, Query, RedisOptions, Status, TensorMut, TensorRef, Tier,
    TierOptions,
};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const PROMPT: [i32; 12] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];

/// The server ends with the test.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A server whose port is taken ends, and the next one tries another. Its log says when it serves.
fn serve(folder: &Folder) -> (Server, String) {
    let end = Instant::now() + Duration::from_secs(120);
    while Instant::now() < end {
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let server = Command::new("redis-server")
            .args([
                "--port",
                &port.to_string(),
                "--bind",
                "127.0.0.1",
                "--save",
                "",
                "--logfile",
                "log",
                "--dir",
            ])
            .arg(folder.path())
            .spawn();
        let mut server = Server(server.unwrap());
        while server.0.try_wait().unwrap().is_none() && Instant::now() < end {
            let log = std::fs::read_to_string(folder.path().join("log")).unwrap_or_default();
            if log.contains("Ready to accept") {
                return (server, format!("127.0.0.1:{port}"));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    panic!("redis-server does not start");
}

fn patient() -> TierOptions {
    let mut options = TierOptions::default();
    options.model_id = Some("m".into());
    options.get_timeout = Duration::from_secs(20);
    options
}

/// One cache publishes, another one finds it and computes nothing.
fn share(tier: Tier, attach: impl Fn(&mut Cache) -> kvcache::Result<()>) {
    let mut first = Cache::with_config(&config()).unwrap();
    attach(&mut first).unwrap();
    assert_eq!(attach(&mut first).unwrap_err().status(), Status::AlreadyExists);
    first.prefix_attach(1, &Query::new(&PROMPT)).unwrap();
    let values = [2.5f32; PROMPT.len() * 8];
    let forward = first.begin(&Batch::new(&[1], &[12]).tokens(&PROMPT)).unwrap();
    let kv = TensorRef::new(&values[..48], &[12, 1, 4]).unwrap();
    let mut out = [0.0f32; PROMPT.len() * 8];
    forward
        .attn(
            0,
            &AttnOptions::default(),
            &TensorRef::new(&values, &[12, 2, 4]).unwrap(),
            (&kv, &kv),
            &mut TensorMut::new(&mut out, &[12, 2, 4]).unwrap(),
        )
        .unwrap();
    forward.end().unwrap();
    first.flush_tiers(None).unwrap();
    let stats = first.tier_stats(tier).unwrap();
    assert!(stats.blocks_put > 0 && stats.blocks_dropped == 0, "{stats:?}");
    drop(first);
    let mut second = Cache::with_config(&config()).unwrap();
    attach(&mut second).unwrap();
    let found = second.prefix_attach(7, &Query::new(&PROMPT)).unwrap();
    assert_eq!(found, 8);
    assert_eq!(second.stats().unwrap().tokens_appended, 0);
    assert_eq!(second.tier_stats(tier).unwrap().blocks_got, 2);
    let mean = step(&mut second, &[7], &[1], &[4.0]).unwrap()[0];
    assert!((mean - (8.0 * 2.5 + 4.0) / 9.0).abs() < 1e-6, "{mean}");
    second.detach_tier(tier).unwrap();
    assert_eq!(second.tier_stats(tier).unwrap_err().status(), Status::NotFound);
    second.check().unwrap();
}

#[test]
fn caches_share_prefixes_through_files() {
    if !has_feature("tier.file").unwrap() {
        eprintln!("skipped: the library was built without libkvcache_tier_rocksdb.so");
        return;
    }
    let folder = Folder::new();
    share(Tier::File, |cache| cache.attach_file_tier(folder.path(), 64 << 20, &patient()));
}

#[test]
fn caches_share_prefixes_through_a_server() {
    if !has_feature("tier.redis").unwrap() {
        eprintln!("skipped: the library was built without libkvcache_tier_redis.so");
        return;
    }
    if Command::new("redis-server").arg("--version").stdout(Stdio::null()).status().is_err() {
        eprintln!("skipped: there is no redis-server here");
        return;
    }
    let folder = Folder::new();
    let (_server, address) = serve(&folder);
    let mut options = RedisOptions::default();
    options.tier = patient();
    options.put_timeout = Duration::from_secs(20);
    options.connect_timeout = Duration::from_secs(20);
    options.ttl = Duration::from_secs(600);
    share(Tier::Redis, |cache| cache.attach_redis_tier(&address, &options));
}

#[test]
fn bad_arguments_are_named() {
    let mut cache = Cache::with_config(&config()).unwrap();
    let options = TierOptions::default();
    let error = cache.attach_file_tier("/nowhere", 0, &options).unwrap_err();
    assert!(error.to_string().contains("byte_limit = 0"), "{error}");
    let error = cache.attach_redis_tier("", &RedisOptions::default()).unwrap_err();
    assert!(error.to_string().contains("address is empty"), "{error}");
    assert_eq!(cache.detach_tier(Tier::Host).unwrap_err().status(), Status::InvalidArgument);
    cache.flush_tiers(Some(Duration::from_millis(5))).unwrap();
}
