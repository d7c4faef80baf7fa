//! A cache of one layer of two query heads, one key head and four elements, and steps whose outputs are
//! means.

use kvcache::{AttnOptions, Batch, CacheRef, Config, DType, Layer, Result, TensorMut, TensorRef};

/// A folder of a test's own, gone with it.
#[allow(dead_code)] // Not every program of tests writes files.
pub struct Folder(std::path::PathBuf);

#[allow(dead_code)]
impl Folder {
    pub fn new() -> Folder {
        // Creating fails where the folder exists: one that an earlier process has left is not taken.
        (0..)
            .map(|i| std::env::temp_dir().join(format!("kvcache-rust-{}-{i}", std::process::id())))
            .find(|path| match std::fs::create_dir(path) {
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => false,
                other => other.map(|()| true).unwrap(),
            })
            .map(Folder)
            .unwrap()
    }
    pub fn path(&self) -> &std::path::Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub fn config() -> Config {
    Config::new(vec![Layer::attention(2, 1, 4).dtype(DType::F32)]).page_size(4).num_pages(16).num_threads(1)
}

/// Appends `values` (one number per token, filling its V) with q = 0, so that each output is the mean of what
/// the token sees.
pub fn step(cache: &mut CacheRef, seqs: &[i64], lengths: &[i64], values: &[f32]) -> Result<Vec<f32>> {
    let tokens = values.len();
    let (q, k) = (vec![0.0f32; tokens * 8], vec![0.0f32; tokens * 4]);
    let v: Vec<f32> = values.iter().flat_map(|value| [*value; 4]).collect();
    let mut out = vec![f32::NAN; tokens * 8];
    let forward = cache.begin(&Batch::new(seqs, lengths))?;
    assert_eq!(forward.num_tokens(), tokens);
    forward.attn(
        0,
        &AttnOptions::default(),
        &TensorRef::new(&q, &[tokens, 2, 4])?,
        (&TensorRef::new(&k, &[tokens, 1, 4])?, &TensorRef::new(&v, &[tokens, 1, 4])?),
        &mut TensorMut::new(&mut out, &[tokens, 2, 4])?,
    )?;
    forward.end()?;
    Ok(out.chunks(8).map(|row| row[0]).collect())
}
