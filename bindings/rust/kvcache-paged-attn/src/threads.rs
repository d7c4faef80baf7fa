//! The kernels run on rayon's threads, as candle's own do.

use kvcache::ops::OpOptions;
use kvcache::{Executor, SharedExecutor};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::OnceLock;

struct Rayon;

// SAFETY: each index is taken once from a counter, by a worker that is a job of its own; the scope ends when all jobs have.
unsafe impl Executor for Rayon {
    fn concurrency(&self) -> usize {
        // Constant: the size of the global pool, also when the caller is inside another one.
        static THREADS: OnceLock<usize> = OnceLock::new();
        *THREADS.get_or_init(rayon::current_num_threads)
    }

    fn parallel_for(&self, num_tasks: i64, task: &(dyn Fn(i64, usize) + Sync)) {
        let next = AtomicI64::new(0);
        let work = |worker: usize| loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= num_tasks {
                break;
            }
            task(index, worker);
        };
        let workers = self.concurrency().min(usize::try_from(num_tasks).unwrap_or(0));
        rayon::scope(|scope| {
            for worker in 1..workers {
                let work = &work;
                scope.spawn(move |_| work(worker));
            }
            work(0);
        });
    }
}

/// Options of an operator that runs on rayon's threads.
pub(crate) fn op_options() -> OpOptions<'static> {
    static RAYON: OnceLock<SharedExecutor> = OnceLock::new();
    OpOptions { executor: Some(RAYON.get_or_init(|| SharedExecutor::new(Rayon))), ..OpOptions::default() }
}
