import kvcache.Int64Array;
import kvcache.Kvcache;
import kvcache.KvcacheException;
import kvcache.kvc_cache;
import kvcache.kvc_config;
import kvcache.kvc_forward;
import kvcache.kvc_forward_desc;
import kvcache.kvc_layer;
import kvcache.kvc_plan;
import kvcache.kvc_plan_info;
import kvcache.kvc_stats;
import java.lang.ref.Reference;

/** Plan, cache, sequences and a failing call from Java: bookkeeping, no tensors. Prints what it did; any surprise throws. */
public final class Smoke {
  private static final long NUM_PAGES = 10;

  public static void main(String[] arguments) throws java.io.IOException {
    System.out.println("libkvcache " + Kvcache.kvc_version_string());
    expect("ABI version", Kvcache.KVC_ABI_VERSION_MAJOR << 16 | Kvcache.KVC_ABI_VERSION_MINOR, Kvcache.kvc_abi_version());

    kvc_plan plan = plan();
    kvc_cache cache = new kvc_cache(plan);
    plan.delete(); // the cache keeps what it needs
    forkSharesPages(cache);
    failuresThrow(cache);
    abortUndoes(cache);
    cache.delete();
    if (arguments.length > 0) {
      String mapped = java.nio.file.Files.readString(java.nio.file.Path.of("/proc/self/maps"));
      expect("libraries mapped from " + arguments[0], 1, mapped.contains(arguments[0]) ? 1 : 0);
      expect("libraries beside it", 0, mapped.contains("/libkvcache.so") ? 1 : 0);
    }
    System.out.println("all as expected");
  }

  private static kvc_plan plan() {
    kvc_layer layer = new kvc_layer();
    layer.setNum_q_heads(32);
    layer.setNum_kv_heads(8);
    layer.setK_dim(128);
    kvc_config config = new kvc_config();
    config.setNum_layers(1);
    config.setLayers(layer);
    config.setPage_size(16);
    config.setNum_pages(NUM_PAGES);
    config.setStorage(Kvcache.KVC_STORAGE_NONE);
    kvc_plan plan = new kvc_plan(config);
    Reference.reachabilityFence(layer); // the config holds its bare address

    kvc_plan_info info = new kvc_plan_info();
    Kvcache.kvc_plan_info_get(plan, info);
    expect("page bytes", 16 * 8 * 128 * 2 * 2, info.getPage_bytes().longValueExact());
    return plan;
  }

  private static void forkSharesPages(kvc_cache cache) {
    Kvcache.kvc_seq_add(cache, 1);
    Kvcache.kvc_forward_end(begin(cache, 1, 40));
    expect("length", 40, length(cache, 1));
    Kvcache.kvc_seq_fork(cache, 1, 2, 35);
    expect("length of the fork", 35, length(cache, 2));
    kvc_stats stats = new kvc_stats();
    Kvcache.kvc_cache_stats_get(cache, stats);
    expect("pages used by both", 3, stats.getPages_used());
    expect("pages shared", 3, stats.getPages_shared());
    Kvcache.kvc_cache_check(cache);
  }

  private static void failuresThrow(kvc_cache cache) {
    KvcacheException missing = failure(() -> length(cache, 77));
    expect("status", Kvcache.KVC_E_NOT_FOUND, missing.status);
    if (!missing.getMessage().contains("KVC_E_NOT_FOUND") || !missing.getMessage().contains("77")) throw missing;
    System.out.println("an unknown sequence: " + missing.getMessage());

    KvcacheException full = failure(() -> begin(cache, 2, 1000));
    expect("status", Kvcache.KVC_E_NEVER_FITS, full.status);
    expect("lengths unchanged", 75, Kvcache.kvc_cache_total_length(cache));

    KvcacheException bad = failure(() -> new kvc_plan(new kvc_config())); // no layers
    expect("status", Kvcache.KVC_E_OUT_OF_RANGE, bad.status);
  }

  private static void abortUndoes(kvc_cache cache) {
    long free = Kvcache.kvc_cache_available_pages(cache);
    kvc_forward forward = begin(cache, 2, 20);
    expect("tokens of the forward", 20, Kvcache.kvc_forward_num_tokens(forward));
    Kvcache.kvc_forward_abort(forward);
    expect("free pages", free, Kvcache.kvc_cache_available_pages(cache));
  }

  /** A forward of one sequence. */
  private static kvc_forward begin(kvc_cache cache, long sequence, long length) {
    Int64Array sequences = new Int64Array(1);
    Int64Array lengths = new Int64Array(1);
    sequences.setitem(0, sequence);
    lengths.setitem(0, length);
    kvc_forward_desc desc = new kvc_forward_desc();
    desc.setNum_seqs(1);
    desc.setSeqs(sequences.cast());
    desc.setAppend_lengths(lengths.cast());
    kvc_forward forward = new kvc_forward(cache, desc);
    sequences.delete(); // borrowed until here
    lengths.delete();
    return forward;
  }

  private static long length(kvc_cache cache, long sequence) {
    long[] length = new long[1];
    Kvcache.kvc_seq_length(cache, sequence, length);
    return length[0];
  }

  private static KvcacheException failure(Runnable call) {
    try {
      call.run();
    } catch (KvcacheException thrown) {
      return thrown;
    }
    throw new AssertionError("a call that has to fail succeeded");
  }

  private static void expect(String what, long expected, long actual) {
    if (expected != actual) throw new AssertionError(what + ": " + actual + " instead of " + expected);
  }
}
