// Generated from include/kvcache.h by `make abi`. Do not edit.
//! Functions of kvcache.h.

use crate::*;
use core::ffi::{c_char, c_void};

extern "C" {
    /// Returns the version of the loaded library's ABI, major \<\< 16 | minor.
    ///
    /// ```text
    /// Threading: any. Device: host only.
    /// ```
    pub fn kvc_abi_version() -> u32;
    /// Returns version and build, for example "0.1.0 cpu".
    ///
    /// ```text
    /// Static storage.
    ///
    /// Threading: any. Device: host only.
    /// ```
    pub fn kvc_version_string() -> *const c_char;
    /// Returns the name of a status, for example "KVC_E_NO_PAGES".
    ///
    /// ```text
    /// Never NULL: a value that this library
    /// does not know is "KVC_E_UNKNOWN".
    ///
    /// Threading: any. Device: host only.
    /// ```
    pub fn kvc_status_name(status: kvc_status) -> *const c_char;
    /// Returns 1 when the build has a feature, and 0 when it has not or does not know the name.
    ///
    /// ```text
    /// back ends   "cpu", "cuda"
    ///   types       "f32", "f16", "bf16"
    ///   RoPE        "rope.half", "rope.interleaved", "rope.on_read", "rope.llama3", "rope.yarn",
    ///               "rope.longrope", "rope.mrope"
    ///   scores      "softcap", "sink_logits", "alibi", "bias"
    ///   masks       "spans", "window", "window.sink", "chunk", "tree"
    ///   layers      "mla", "cross", "shared", "v_is_k", "state", "linear"
    ///   calls       "cascade", "shift", "ops", "resize", "export", "swap", "events"
    ///   storage     "storage.borrowed", "storage.none", "layout.page_first"
    ///   planning    "plan.quant", "plan.hf_json"
    ///   prefixes    "prefix", "prefix.tail", "prefix.quota", "prefix.host"
    ///
    /// "cuda" says whether the CUDA back end was found, and loads it for that.
    /// `name`: borrowed for the call; NULL gives 0.
    ///
    /// Threading: any. Device: host only.
    /// ```
    pub fn kvc_has_feature(name: *const c_char) -> i32;
    /// Sets the directory in which modules lie: shared libraries of this project, loaded when they
    /// are first needed.
    ///
    /// ```text
    /// There is one, the CUDA back end libkvcache_cuda.so.
    ///
    /// Without this call, or after NULL, modules lie in the directory of the file that holds the
    /// library's code: libkvcache.so, or the program that libkvcache.a is linked into. The dynamic
    /// linker never searches for a module, so LD_LIBRARY_PATH, RUNPATH and its cache have no part in the
    /// choice. What a module depends on itself (libc, libstdc++) the linker finds as usual.
    ///
    /// A failed search is remembered. Until the next successful kvc_module_path_set nothing is looked
    /// for again: kvc_cache_create and kvc_op_* on a GPU answer KVC_E_UNSUPPORTED with the same message,
    /// which names the file; kvc_has_feature answers 0 and kvc_device_query backend_present = 0. A
    /// loaded module stays for the life of the process.
    ///
    /// `path`: absolute path of a directory, copied. It is not looked at before a module is needed.
    /// Paths are compared as text; NULL is equal to NULL alone.
    ///
    /// Misuse:    KVC_E_INVALID_ARGUMENT  path is not absolute, or holds a '$', which the dynamic linker
    ///                                    would replace.
    ///            KVC_E_INVALID_STATE     A module has been loaded, and path is not the one in force.
    ///                                    The message names the module's file.
    /// Threading: any. Device: host only.
    /// ```
    pub fn kvc_module_path_set(path: *const c_char, err: *mut kvc_error) -> kvc_status;
    /// Reports what the library can do on a device.
    ///
    /// ```text
    /// A kind of device without a back end in this build, or without a driver, is not an error:
    /// backend_present is 0, and so is the rest. See kvc_has_feature("cuda") for whether the CUDA back
    /// end was found. For kDLCUDA the call loads it, and CUDA makes the device's primary context.
    ///
    /// Expected:  KVC_E_UNSUPPORTED   A GPU that the back end has no code for (compute capability below
    ///                                8.0).
    /// Misuse:    KVC_E_OUT_OF_RANGE  The device id does not exist.
    /// Threading: any. Device: host only.
    /// ```
    pub fn kvc_device_query(
        device: DLDevice,
        out: *mut kvc_device_caps,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Sends messages of at least `min_level` to `fn`.
    ///
    /// ```text
    /// NULL, the initial state, means silence.
    ///
    /// `user`: borrowed until the logger is replaced. On return no thread is in the previous `fn` any
    /// more.
    ///
    /// Misuse:    KVC_E_INVALID_ARGUMENT  Unknown level.
    /// Threading: any. Device: host only.
    /// ```
    pub fn kvc_set_logger(
        fn_: kvc_log_fn,
        user: *mut c_void,
        min_level: kvc_log_level,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Zeroes `struct_size` bytes and sets the size field.
    ///
    /// ```text
    /// Pass sizeof(kvc_config).
    ///
    /// Misuse:    KVC_E_INVALID_ARGUMENT  config is NULL, or struct_size cannot hold the size field.
    /// Threading: any. Device: host only.
    /// ```
    pub fn kvc_config_init(config: *mut kvc_config, struct_size: usize) -> kvc_status;
    /// Reads a Hugging Face `config.json` into the layers of a model.
    ///
    /// ```text
    /// 1. Writes num_layers, layers and max_seq_len (the model's longest) of `config`. Encoder-decoders
    ///    with a fixed encoder: max_cross_len too. Every other field is left as it is.
    /// 2. A layer of the model that has two parts (self and cross attention; attention and state)
    ///    becomes two entries, so ids count entries.
    /// 3. Storage is of the model's torch_dtype (bfloat16 where it has none), or quantised as its
    ///    quantization_config says, with scales of 1. Rotations are read, and set to
    ///    KVC_ROPE_ON_APPEND.
    ///
    ///   json     NUL-terminated, borrowed for the call.
    ///   opt      NULL: all defaults.
    ///   config   config->struct_size must be set.
    ///   layers   layers[0].struct_size must be set. NULL: only the count. Keep the array until
    ///            kvc_plan_create has copied it.
    ///   *n       Capacity of layers in elements on entry, elements needed on return. It is more than
    ///            num_layers, because the elements behind the layers hold the rotations, state shapes
    ///            and factors that the layers point at.
    ///
    /// Families (`kvcache plan --families` lists the names): Llama 2 to 4 and 3.2 Vision, Mistral,
    /// Ministral, Mixtral, Qwen 2 to 3.5, Next and VL, Gemma 1 to 4 and 3n, GPT-OSS, DeepSeek V2 and V3,
    /// Kimi-K2 and Kimi-Linear, Phi 1 to 4, GLM-4, ChatGLM, Cohere 1 and 2, OLMo 1 to 3, Granite,
    /// StableLM, StarCoder 1 and 2, MiMo-V2, BLOOM, Falcon, MPT, GPT-2, GPT-J, GPT-NeoX, OPT, Jamba,
    /// Mamba 1 and 2, Falcon-Mamba, Falcon-H1, Zamba 2, Bamba, Nemotron-H, LFM2, T5, BART, Whisper.
    /// A family that has no rules of its own is read by its keys (docs/plan.md): rotations are then left
    /// to the model, and one warning is logged for a model_type that is not known.
    ///
    /// Expected:  KVC_E_UNSUPPORTED       An encoder, a model_type whose keys do not say enough, a key
    ///                                    that could change what is kept and that no rule reads, or a
    ///                                    feature that the library has not (named); opt->mtp_layers of a
    ///                                    model without any that are known.
    ///            KVC_E_BUFFER_TOO_SMALL  layers has fewer than *n elements.
    /// Misuse:    KVC_E_INVALID_ARGUMENT  Not JSON (detail = byte), a field that is missing or of the
    ///                                    wrong type (the message names it), or opt->assume is not a
    ///                                    known model_type, or the file's own is known.
    ///            KVC_E_OUT_OF_RANGE      A number beyond reason, or opt->mtp_layers above those of the
    ///                                    model (detail = their number).
    /// Threading: any. Device: host only.
    /// ```
    pub fn kvc_config_from_hf(
        json: *const c_char,
        opt: *const kvc_hf_options,
        config: *mut kvc_config,
        layers: *mut kvc_layer,
        n: *mut usize,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// kvc_config_from_hf with opt = NULL, and its statuses.
    ///
    /// ```text
    /// Expected:  those of kvc_config_from_hf.
    /// Misuse:    those of kvc_config_from_hf.
    /// Threading: any. Device: host only.
    /// ```
    pub fn kvc_config_from_hf_json(
        json: *const c_char,
        config: *mut kvc_config,
        layers: *mut kvc_layer,
        n: *mut usize,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Checks a configuration and plans its memory.
    ///
    /// ```text
    /// `config` and all that it points at are copied, except pool tensors' data and the `user` pointers.
    /// `*out`: owned by caller, see kvc_plan_destroy. A cache keeps what it needs of the plan.
    ///
    /// Expected:  KVC_E_NEVER_FITS        The pages cannot hold one sequence of max_seq_len (detail =
    ///                                    the longest that fits).
    ///            KVC_E_UNSUPPORTED       The message names field and value.
    /// Misuse:    KVC_E_INVALID_ARGUMENT  Contradictory or missing fields; a budget that holds no page
    ///                                    (detail = bytes of one page).
    ///            KVC_E_OUT_OF_RANGE      A field beyond its limit, or sizes that overflow.
    ///            KVC_E_SHAPE, KVC_E_DEVICE_MISMATCH  Pool tensors.
    ///            KVC_E_VERSION           Unknown struct tail.
    /// Threading: any. Device: host only.
    /// ```
    pub fn kvc_plan_create(
        config: *const kvc_config,
        out: *mut *mut kvc_plan,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Destroys a plan.
    ///
    /// ```text
    /// NULL is accepted. Caches made from the plan stay valid.
    ///
    /// Threading: any, once. Device: host only.
    /// ```
    pub fn kvc_plan_destroy(plan: *mut kvc_plan);
    /// Reports the plan as numbers.
    ///
    /// ```text
    /// host_bytes is an upper bound of kvc_stats.host_bytes, by which a container can be sized. It
    /// allows for:
    ///
    /// 1. max_seqs sequences (0: one per page). Together they have max_tokens tokens, their ids are
    ///    known, and no page is shared: the page tables of forks come on top.
    /// 2. Forwards of max_tokens_per_forward tokens (0: max_tokens), in all layers.
    /// 3. A pool on the CPU and a host pool that are full, the prefix index of both, state slots of all
    ///    sequences, event_capacity events.
    /// 4. As many workers as num_threads says. config.executor counts as kvc_caps.num_cores.
    ///
    /// On top come token trees of more than 64 nodes per sequence, windows and ALiBi of calls,
    /// checkpoints by kvc_state_checkpoint, extra keys, namespaces with a quota, tiers, sequences that
    /// were longer before, and on CUDA the pinned memory of forwards.
    ///
    /// Threading: any. Device: host only.
    /// ```
    pub fn kvc_plan_info_get(
        plan: *const kvc_plan,
        out: *mut kvc_plan_info,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Reports a layer group.
    ///
    /// ```text
    /// Misuse:    KVC_E_OUT_OF_RANGE  group is not in 0..num_groups-1.
    /// Threading: any. Device: host only.
    /// ```
    pub fn kvc_plan_group_get(
        plan: *const kvc_plan,
        group: i32,
        out: *mut kvc_group_info,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Reports a layer as planned, defaults filled in.
    ///
    /// ```text
    /// `layer`: id in the whole model, layer_begin <= layer < layer_end. SHARED: group, kept_group,
    /// page_size, region and dims are the source's; bytes that it keeps itself are 0. MLA: k_page_bytes
    /// is the latents', num_kv_heads 1, v_page_bytes 0. K = V layers: v_page_bytes 0.
    ///
    /// Misuse:    KVC_E_OUT_OF_RANGE  No such layer here.
    /// Threading: any. Device: host only.
    /// ```
    pub fn kvc_plan_layer_get(
        plan: *const kvc_plan,
        layer: i32,
        out: *mut kvc_layer_info,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Returns the pages that a byte budget holds.
    ///
    /// ```text
    /// May be 0.
    ///
    /// Threading: any. Device: host only.
    /// ```
    pub fn kvc_plan_pages_for(
        plan: *const kvc_plan,
        byte_budget: u64,
        out_pages: *mut i64,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Returns the longest single request, in tokens, that a byte budget holds.
    ///
    /// ```text
    /// May be 0.
    ///
    /// Threading: any. Device: host only.
    /// ```
    pub fn kvc_plan_max_tokens(
        plan: *const kvc_plan,
        byte_budget: u64,
        out_tokens: *mut i64,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Returns the most pages that one request of `num_tokens` >= 0 tokens needs while it is
    /// computed, when it shares nothing.
    ///
    /// ```text
    /// It is the sum over layer groups, and two state slots (before and after a forward) where they come
    /// out of the pages. With m = forwards_in_flight * max_tokens_per_forward (num_tokens where that has
    /// no limit), a layer group needs
    ///
    ///   full attention   ceil(num_tokens / page_size)
    ///   window W         ceil((W - 1 + m) / page_size) + 1 (vLLM's formula), and no more than full
    ///                    attention
    ///   chunk C          the same with C, without the + 1 where page_size divides C
    ///   CROSS            ceil(max_cross_len / page_size)
    ///
    /// Misuse:    KVC_E_OUT_OF_RANGE  num_tokens is negative.
    /// Threading: any. Device: host only.
    /// ```
    pub fn kvc_plan_request_pages(
        plan: *const kvc_plan,
        num_tokens: i64,
        out_pages: *mut i64,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Writes the plan as a table for people; see ARRAYS OUT.
    ///
    /// ```text
    /// Threading: any. Device: host only.
    /// ```
    pub fn kvc_plan_describe(
        plan: *const kvc_plan,
        buf: *mut c_char,
        len: *mut usize,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Writes the plan as JSON; see ARRAYS OUT.
    ///
    /// ```text
    /// Fields: page_size, num_pages, page_bytes, bytes_per_token, pool_bytes, max_tokens, max_seq_len,
    /// pool_layout, storage, concurrency, waste, groups[], layers[], and others. Fields may be added.
    ///
    /// Threading: any. Device: host only.
    /// ```
    pub fn kvc_plan_to_json(
        plan: *const kvc_plan,
        buf: *mut c_char,
        len: *mut usize,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Returns the pages that every rank of one model has: the least of the plans' num_pages.
    ///
    /// ```text
    /// Tensor and pipeline parallel ranks run one scheduler, so page ids must mean the same everywhere.
    /// Give each rank's plan this number.
    ///
    /// Misuse:    KVC_E_INVALID_ARGUMENT  n = 0; a NULL plan; plans whose groups differ in number,
    ///                                    page_size, window, chunk or kind (the message names both).
    /// Threading: any. Device: host only.
    /// ```
    pub fn kvc_plan_min_pages(
        plans: *const *const kvc_plan,
        n: usize,
        out_pages: *mut i64,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Makes an empty cache.
    ///
    /// ```text
    /// `plan`: borrowed for the call. `*out`: owned by caller. On the CPU owned memory is reserved, not
    /// touched: it costs physical memory as pages are written. On a GPU it is allocated, and the call
    /// waits for that.
    ///
    /// Expected:  KVC_E_NO_MEMORY         The pool or the tables could not be allocated.
    ///            KVC_E_UNSUPPORTED       config.cpu_isa is not available on this machine, or the device
    ///                                    has no back end here.
    ///            KVC_E_BUSY              Another cache has the plan's borrowed tensors.
    /// Misuse:    KVC_E_INVALID_ARGUMENT  A plan without pages; a bad executor or allocator.
    ///            KVC_E_UNSUPPORTED       OWNED storage of a type that the device does not attend to
    ///                                    (kvc_quant: 4 bits on the CPU).
    ///            KVC_E_DEVICE_MISMATCH   Pool tensors lie on another GPU, or are no memory of it.
    /// Threading: any. Device: host only.
    /// ```
    pub fn kvc_cache_create(
        plan: *const kvc_plan,
        out: *mut *mut kvc_cache,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Destroys a cache.
    ///
    /// ```text
    /// NULL is accepted. An open forward is dropped. Exported tensors stay valid until
    /// their deleters run. On a GPU it waits until all that was enqueued for the cache is done.
    ///
    /// Threading: exclusive. Device: host only.
    /// ```
    pub fn kvc_cache_destroy(cache: *mut kvc_cache);
    /// Forgets all sequences, the prefix index and what is on the host, and gives memory back as
    /// kvc_cache_trim does.
    ///
    /// ```text
    /// Misuse:    KVC_E_BUSY  A forward is open.
    /// Threading: exclusive. Device: host only.
    /// ```
    pub fn kvc_cache_clear(cache: *mut kvc_cache, err: *mut kvc_error) -> kvc_status;
    /// Gives the physical memory of free pages and free state slots back to the system.
    ///
    /// ```text
    /// They read zero
    /// until they are written, and cost memory again then. Pages that sequences or the prefix index hold
    /// stay. A cache without sequences that is to sleep: kvc_prefix_reset first, where its prefixes need
    /// not be kept.
    ///
    ///   pool               OWNED, on the CPU, without config.allocator: whole system pages between free
    ///                      pages go back. Other pools keep what they have.
    ///   host pool          Likewise, beside a cache on the CPU, unless kvc_pages_swap uses it.
    ///   states             They go back on the CPU.
    ///   CUDA               Nothing goes back, neither of the device nor of pinned host memory.
    ///
    /// *out_released (may be NULL): bytes that had memory and have none now.
    ///
    /// Misuse:    KVC_E_BUSY  A forward is open.
    /// Threading: exclusive. Device: host only.
    /// ```
    pub fn kvc_cache_trim(
        cache: *mut kvc_cache,
        out_released: *mut u64,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Grows the pool, or shrinks it when what is in use fits.
    ///
    /// ```text
    /// Contents stay, and so do page ids, but
    /// those that a shrink cuts off: where the library alone writes the pool (OWNED, and kvc_export_pool
    /// was never called), such pages move to free places below. Cached prefixes there are forgotten. On
    /// a GPU it waits until all that was enqueued for the cache is done.
    ///
    /// A tensor exported before keeps its shape; after a shrink the dropped pages in it may read zero.
    ///
    /// Expected:  KVC_E_BUSY          More pages are in use, those of states included (detail = how
    ///                                many); a page that is cut off is in use and can't move (detail =
    ///                                its id); or the pool has to move while exports of it live.
    ///            KVC_E_NEVER_FITS    The configuration's max_seq_len would no longer fit (detail = the
    ///                                longest that fits).
    ///            KVC_E_NO_MEMORY     The larger pool cannot be allocated.
    /// Misuse:    KVC_E_BUSY          A forward is open.
    ///            KVC_E_OUT_OF_RANGE  num_pages < 1 or too large.
    ///            KVC_E_UNSUPPORTED   Borrowed storage.
    /// Threading: exclusive. Device: host only.
    /// ```
    pub fn kvc_cache_resize(
        cache: *mut kvc_cache,
        num_pages: i64,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Reports the counters and gauges of a cache.
    ///
    /// ```text
    /// Counters run from kvc_cache_create on;
    /// kvc_cache_clear keeps them.
    ///
    /// values_saturated: an element of K or V counts each time that a caller's row is stored with one
    /// scale per layer (KVC_QUANT_PER_TENSOR): by kvc_attn*, kvc_kv_append, kvc_mla_append or
    /// kvc_debug_set_*. The number of threads does not change the sum.
    ///
    ///   rotated K          It counts as it is stored: rotated.
    ///   K = V, latents     They count once.
    ///   aborted forwards   What they stored stays counted.
    ///   moved rows         They don't count again: copies, forks, swaps, files, kvc_seq_shift.
    ///   CUDA               It counts nothing, and neither do the host program's own kernels.
    ///
    /// host_bytes: allocated, which is at least what is resident. Of this, pool and host pool count all
    /// pages, written or not; pool_bytes and host_pages_total * page_bytes say how much that is.
    ///
    ///   counted       A pool on the CPU (config.allocator's too), the host pool, state slots, page
    ///                 tables, sequences, the prefix index, events, cos and sin, scratch of attention,
    ///                 pinned memory, queues of tiers.
    ///   not counted   Borrowed pools, memory of a GPU, the plan, exports of page tables, transfers and
    ///                 transports, stacks of threads, what a tier's module or the GPU's driver keeps,
    ///                 what the heap adds to each block (16 bytes, say), what a call frees before it
    ///                 returns.
    ///   scratch       While a forward is open: as of its begin, where this was called before it.
    ///
    /// Arrays grow ahead of need, and keep their room: also that which a refused call has made.
    ///
    /// Threading: shared. Device: host only.
    /// ```
    pub fn kvc_cache_stats_get(
        cache: *const kvc_cache,
        out: *mut kvc_stats,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Returns the pages that no sequence, forward or pin holds: free ones, and cached ones, which
    /// only the prefix index knows.
    ///
    /// ```text
    /// -1 when cache is NULL.
    ///
    /// Threading: shared. Device: host only.
    /// ```
    pub fn kvc_cache_available_pages(cache: *const kvc_cache) -> i64;
    /// Returns the tokens over all sequences, each sequence counting its shared prefix.
    ///
    /// ```text
    /// -1 when cache is
    /// NULL.
    ///
    /// Threading: shared. Device: host only.
    /// ```
    pub fn kvc_cache_total_length(cache: *const kvc_cache) -> i64;
    /// Returns 1 when no sequence exists and every page is available.
    ///
    /// ```text
    /// 0 otherwise, also when cache is
    /// NULL.
    ///
    /// Threading: shared. Device: host only.
    /// ```
    pub fn kvc_cache_is_empty(cache: *const kvc_cache) -> i32;
    /// Recounts everything and compares: reference counts, free list, lengths, tables.
    ///
    /// ```text
    /// O(pages).
    ///
    /// Expected:  KVC_E_CORRUPT  A defect in the library. The message names the page or the sequence.
    /// Threading: shared. Device: host only.
    /// ```
    pub fn kvc_cache_check(cache: *const kvc_cache, err: *mut kvc_error) -> kvc_status;
    /// Adds an empty sequence.
    ///
    /// ```text
    /// Never fails for capacity.
    ///
    /// Misuse:    KVC_E_INVALID_ARGUMENT  seq < 0.
    ///            KVC_E_ALREADY_EXISTS    The id is taken.
    /// Threading: exclusive. Device: host only.
    /// ```
    pub fn kvc_seq_add(cache: *mut kvc_cache, seq: kvc_seq, err: *mut kvc_error) -> kvc_status;
    /// Removes a sequence.
    ///
    /// ```text
    /// Any order is legal: shared pages live on while another sequence uses them.
    ///
    /// Misuse:    KVC_E_NOT_FOUND  No such sequence.
    ///            KVC_E_BUSY       It is in the open forward.
    /// Threading: exclusive. Device: host only.
    /// ```
    pub fn kvc_seq_remove(cache: *mut kvc_cache, seq: kvc_seq, err: *mut kvc_error) -> kvc_status;
    /// Adds `child` with the first `pos` tokens of `parent` (-1: all).
    ///
    /// ```text
    /// Nothing is copied: pages are shared. A partial last page is copied by whoever appends to it
    /// first; kvc_seq_can_append counts that page. The child inherits the window, the encoder tokens,
    /// the checkpoints and known token ids up to pos, the namespace of the prefix index, and positions
    /// that kvc_seq_shift has moved.
    ///
    /// Expected:  KVC_E_OUT_OF_RANGE      pos needs tokens that a window has dropped, or a state without
    ///                                    a checkpoint there. The message says which; detail = the
    ///                                    nearest possible position below, see kvc_seq_positions.
    /// Misuse:    KVC_E_OUT_OF_RANGE      pos < -1, or beyond the length.
    ///            KVC_E_NOT_FOUND         parent.
    ///            KVC_E_ALREADY_EXISTS, KVC_E_INVALID_ARGUMENT  child.
    ///            KVC_E_BUSY              parent is in the open forward.
    ///            KVC_E_INVALID_STATE     parent has an uncommitted token tree or is swapped out.
    /// Threading: exclusive. Device: host only.
    /// ```
    pub fn kvc_seq_fork(
        cache: *mut kvc_cache,
        parent: kvc_seq,
        child: kvc_seq,
        pos: i64,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Appends `n` tokens without content, for rows that come from elsewhere (kvc_pages_import,
    /// kvc_export_pool, kvc_debug_set_layer).
    ///
    /// ```text
    /// It is a forward of one sequence with KVC_FORWARD_PARTIAL in which no layer gets rows: they read
    /// as that says, and the prefix index gets no block that contains one of these tokens.
    ///
    /// To have the rows found as prefixes, begin a forward with their token ids instead, import into its
    /// pages (kvc_export_page_table says which), and end it: kvc_forward_end publishes full blocks.
    ///
    /// Expected:  KVC_E_NO_PAGES          detail = pages and state slots missing.
    ///            KVC_E_NEVER_FITS        As kvc_forward_begin.
    /// Misuse:    KVC_E_NOT_FOUND         No such sequence.
    ///            KVC_E_INVALID_ARGUMENT  n < 1.
    ///            KVC_E_OUT_OF_RANGE      Limits of the configuration.
    ///            KVC_E_INVALID_STATE     It has an uncommitted token tree or is swapped out.
    ///            KVC_E_BUSY              A forward is open.
    /// Threading: exclusive. Device: enqueues.
    /// ```
    pub fn kvc_seq_reserve(
        cache: *mut kvc_cache,
        seq: kvc_seq,
        n: i64,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Drops the last `n` tokens, 0 \<= n \<= length, also past a fork point.
    ///
    /// ```text
    /// Siblings keep theirs, and
    /// the prefix index keeps the blocks that it knows.
    ///
    /// Pages behind the windows of layers are freed when no later query sees them. Where the
    /// configuration sets forwards_in_flight and max_tokens_per_forward, such a window keeps their
    /// product m more tokens: rejected drafts, up to m tokens back from the most that the sequence has
    /// had, can always be popped. Three things bring fewer: a fork has what its parent kept, a hit what
    /// the index had, and a forward that finds no other pages takes what its end would drop. Windows of
    /// kvc_seq_set_window keep none.
    ///
    /// Expected:  KVC_E_OUT_OF_RANGE   The rest would need tokens that a window has dropped, or a state
    ///                                 without a checkpoint there. The message says which; detail = the
    ///                                 nearest possible position below, see kvc_seq_positions.
    /// Misuse:    KVC_E_OUT_OF_RANGE   n.
    ///            KVC_E_NOT_FOUND      No such sequence.
    ///            KVC_E_BUSY           It is in the open forward.
    ///            KVC_E_INVALID_STATE  It has an uncommitted token tree or is swapped out.
    /// Threading: exclusive. Device: host only.
    /// ```
    pub fn kvc_seq_pop(
        cache: *mut kvc_cache,
        seq: kvc_seq,
        n: i64,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Drops tokens \[begin, end) of a sequence and moves the later ones by `delta` positions.
    ///
    /// ```text
    /// delta = begin - end closes the gap (context shift). With begin = end the positions of the tokens
    /// from begin on move, and nothing is dropped. Shared pages are made private first. Tokens appended
    /// later continue after the last position. What a window has dropped stays dropped; the rest moves.
    ///
    /// K that is stored rotated: on the CPU, in owned storage that was not handed out, rows stay as they
    /// are and queries are rotated to meet them, so that the error does not grow with the number of
    /// shifts. Only a shift at another `begin` than the one before rotates the rows between the two.
    /// What leaves the cache is rotated for the position it has, and rows are before the host program
    /// gets or writes pages itself. Elsewhere (CUDA, BORROWED, after kvc_export_pool or
    /// kvc_pages_import, with K = V layers) every shift rotates the rows and rounds them: in 16 and 8
    /// bit, thousands of shifts by one token lose the small angles.
    ///
    /// Expected:  KVC_E_NO_PAGES       For private copies of shared pages, and for one page per layer
    ///                                 group where a window has dropped tokens (detail = missing).
    ///            KVC_E_OUT_OF_RANGE   The next token would see a token that a window has dropped.
    ///            KVC_E_UNSUPPORTED    One of these:
    ///                                 - The cache has STATE layers.
    ///                                 - A delta other than begin - end, which leaves a gap, where the
    ///                                   sequence or a layer has a window or chunk.
    ///                                 - It would move K that is rotated ON_APPEND and stored in 4
    ///                                   bits, or on CUDA quantised.
    ///                                 - It would move a token to one of the first
    ///                                   kvc_layer.keep_tokens places from behind them.
    /// Misuse:    KVC_E_OUT_OF_RANGE   Not 0 <= begin <= end <= length, or positions would become
    ///                                 negative, stop ascending, or exceed int32.
    ///            KVC_E_NOT_FOUND      No such sequence.
    ///            KVC_E_BUSY           It is in the open forward.
    ///            KVC_E_INVALID_STATE  It has an uncommitted token tree or is swapped out.
    /// Threading: exclusive. Device: enqueues.
    /// ```
    pub fn kvc_seq_shift(
        cache: *mut kvc_cache,
        seq: kvc_seq,
        begin: i64,
        end: i64,
        delta: i64,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Limits what the sequence sees to its first `sink` tokens and the newest ones, in every
    /// ATTENTION and MLA layer (StreamingLLM, arXiv:2309.17453).
    ///
    /// ```text
    /// 1. A query at position p sees keys k < sink or k > p - (window - sink): at most `window` keys,
    ///    itself included. Layers with a window of their own see what both allow.
    /// 2. Pages that no later query sees are freed.
    /// 3. With ON_READ rope, sink tokens keep the distance that they have at position window - 1. With
    ///    other modes they keep their true distances.
    /// 4. May be called again, for a larger window as long as its tokens are still there. A window
    ///    cannot be taken off; one as long as the sequence will ever be hides nothing.
    ///
    /// Expected:  KVC_E_OUT_OF_RANGE      It needs tokens that are dropped.
    /// Misuse:    KVC_E_UNSUPPORTED       No ATTENTION or MLA layer here; a layer with chunk; with sink
    ///                                    tokens, a layer whose own window is larger than window - sink;
    ///                                    positions that kvc_seq_shift has moved apart.
    ///            KVC_E_INVALID_ARGUMENT  window < 1, sink < 0, or sink >= window.
    ///            KVC_E_NOT_FOUND         No such sequence.
    ///            KVC_E_BUSY              It is in the open forward.
    ///            KVC_E_INVALID_STATE     It has an uncommitted token tree or is swapped out.
    /// Threading: exclusive. Device: host only.
    /// ```
    pub fn kvc_seq_set_window(
        cache: *mut kvc_cache,
        seq: kvc_seq,
        window: i64,
        sink: i64,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Returns the committed tokens of a sequence.
    ///
    /// ```text
    /// Tokens of an open forward are not counted until
    /// kvc_forward_end.
    ///
    /// Misuse:    KVC_E_NOT_FOUND  No such sequence.
    /// Threading: shared. Device: host only.
    /// ```
    pub fn kvc_seq_length(
        cache: *const kvc_cache,
        seq: kvc_seq,
        out_length: *mut i64,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Reports a sequence.
    ///
    /// ```text
    /// O(pages of the sequence).
    ///
    /// Misuse:    KVC_E_NOT_FOUND  No such sequence.
    /// Threading: shared. Device: host only.
    /// ```
    pub fn kvc_seq_info_get(
        cache: *const kvc_cache,
        seq: kvc_seq,
        out: *mut kvc_seq_info,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Writes all sequence ids, ascending; see ARRAYS OUT.
    ///
    /// ```text
    /// Threading: shared. Device: host only.
    /// ```
    pub fn kvc_seq_list(
        cache: *const kvc_cache,
        ids: *mut kvc_seq,
        count: *mut usize,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Asks whether kvc_forward_begin with these `n` sequences and append lengths would find its
    /// pages.
    ///
    /// ```text
    /// *out_missing_pages = 0: yes. > 0: pages and state slots that are missing now, added up.
    /// Copy-on-write pages are counted, encoder tokens are not. A sequence with an uncommitted tree is
    /// taken to be extended by roots. A first tree needs what a plain append of as many tokens needs;
    /// where its nodes would exceed max_seq_len as plain tokens, this answers KVC_E_NEVER_FITS.
    /// Arrays are borrowed for the call.
    ///
    /// Expected:  KVC_E_NEVER_FITS        As kvc_forward_begin.
    /// Misuse:    KVC_E_NOT_FOUND         No such sequence.
    ///            KVC_E_INVALID_ARGUMENT  n = 0, duplicate ids, lengths < 1.
    ///            KVC_E_OUT_OF_RANGE      Limits of the configuration.
    ///            KVC_E_BUSY              A sequence of the open forward.
    ///            KVC_E_INVALID_STATE     A sequence that is swapped out.
    /// Threading: shared. Device: host only.
    /// ```
    pub fn kvc_seq_can_append(
        cache: *const kvc_cache,
        n: usize,
        seqs: *const kvc_seq,
        lengths: *const i64,
        out_missing_pages: *mut i64,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Asks whether the sequence could be forked at, popped back to, or shifted at position `pos`
    /// (-1: its end).
    ///
    /// ```text
    /// *out_nearest is the nearest position at or below `pos` where it could: `pos` itself when yes, -1
    /// when there is none. An edit of the text from `pos` on goes back to it. A pos beyond the length is
    /// taken for the length; SHIFT at the end asks for the last token. Pages for private copies are not
    /// asked for.
    ///
    /// Misuse:    KVC_E_NOT_FOUND      No such sequence.
    ///            KVC_E_UNSUPPORTED    Unknown op.
    ///            KVC_E_OUT_OF_RANGE   pos < -1.
    ///            KVC_E_BUSY           It is in the open forward.
    ///            KVC_E_INVALID_STATE  It has an uncommitted token tree or is swapped out.
    /// Threading: shared. Device: host only.
    /// ```
    pub fn kvc_seq_can(
        cache: *const kvc_cache,
        seq: kvc_seq,
        op: kvc_seq_op,
        pos: i64,
        out_nearest: *mut i64,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Asks for the possible positions on both sides of `pos`, as kvc_seq_can takes it.
    ///
    /// ```text
    /// out_below   the nearest at or below
    ///   out_above   the nearest at or above
    ///
    /// Both are `pos` where the operation is possible there. -1: there is none on that side.
    ///
    /// Misuse:    as kvc_seq_can.
    /// Threading: shared. Device: host only.
    /// ```
    pub fn kvc_seq_positions(
        cache: *const kvc_cache,
        seq: kvc_seq,
        op: kvc_seq_op,
        pos: i64,
        out_below: *mut i64,
        out_above: *mut i64,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Opens a forward: checks everything, reserves pages, and makes private what the new tokens
    /// share.
    ///
    /// ```text
    /// Prefill, chunked prefill, decode and trees mix freely in one batch. `*out`: valid until
    /// kvc_forward_end, kvc_forward_abort or kvc_cache_destroy. The handle is a number that is never
    /// used again and never dereferenced: every later call that returns a status answers
    /// KVC_E_INVALID_STATE, for ever. A begin that fails evicts nothing.
    ///
    /// Expected:  KVC_E_NO_PAGES    Full now: pages, or state slots, the message says which (detail =
    ///                              missing).
    ///            KVC_E_NEVER_FITS  One sequence alone (detail) would exceed the pool, max_seq_len, or,
    ///                              with the checkpoints that the caller made, num_state_slots. The
    ///                              deepest path of a tree counts against max_seq_len, all of its nodes
    ///                              against the pool.
    /// Misuse:    KVC_E_BUSY              A forward is open.
    ///            KVC_E_NOT_FOUND         A sequence does not exist.
    ///            KVC_E_INVALID_ARGUMENT  An empty batch, a duplicate id, a length < 1, a tree parent
    ///                                    that is not below its node or below -1, KVC_TREE_NONE beside
    ///                                    nodes of the same sequence.
    ///            KVC_E_OUT_OF_RANGE      More sequences, tokens, tree nodes or encoder tokens than
    ///                                    allowed.
    ///            KVC_E_INVALID_STATE     A plain append to an uncommitted tree; encoder tokens for a
    ///                                    sequence that has tokens and some of them already; a sequence
    ///                                    that is swapped out.
    ///            KVC_E_UNSUPPORTED       One of these:
    ///                                    - Trees in a cache with STATE layers.
    ///                                    - With ON_READ rope, a tree of a sequence with fewer committed
    ///                                      tokens than sink tokens.
    ///                                    - positions with an ON_READ layer.
    ///                                    - Encoder tokens without a CROSS layer.
    ///                                    - tokens with a CROSS layer.
    ///            tensors                 positions.
    ///            CUDA GRAPHS lists the statuses of captured and replayed forwards.
    /// Threading: exclusive. Device: enqueues.
    /// ```
    pub fn kvc_forward_begin(
        cache: *mut kvc_cache,
        desc: *const kvc_forward_desc,
        out: *mut *mut kvc_forward,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Returns the new tokens of the whole batch (T).
    ///
    /// ```text
    /// -1 when fwd is NULL or no longer open.
    ///
    /// Threading: shared. Device: host only.
    /// ```
    pub fn kvc_forward_num_tokens(fwd: *const kvc_forward) -> i64;
    /// Writes the position of each new token, as RoPE takes it.
    ///
    /// ```text
    /// out   int32 [>= T], or [S, >= T] for S given position rows (S = 1 otherwise). With storage NONE
    ///         it lies on the host.
    ///
    /// The position of a tree node is the committed length plus its depth. Caller-given positions come
    /// back; row 0 when out has one dimension.
    ///
    /// Misuse:    KVC_E_INVALID_STATE  The forward is not open.
    ///            tensors              out.
    /// Threading: shared. Device: enqueues.
    /// ```
    pub fn kvc_forward_positions(
        fwd: *mut kvc_forward,
        out: *mut DLTensor,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Makes the new tokens part of their sequences.
    ///
    /// ```text
    /// The handle is dead afterwards.
    ///
    /// Where the library alone writes the pool (storage OWNED, and kvc_export_pool was never called),
    /// every layer must have got its K and V in this forward, by kvc_attn, kvc_attn_fused_qkv,
    /// kvc_kv_append or kvc_mla_append:
    ///
    ///   ATTENTION, MLA   always
    ///   CROSS            in a forward that announced encoder tokens (kvc_attn_cross)
    ///   STATE            never: a state that is not set is carried on
    ///   SHARED, NONE     never: they have no rows of their own
    ///
    /// 1. A forward that leaves a layer out on purpose sets KVC_FORWARD_PARTIAL.
    /// 2. What kvc_debug_set_* writes does not count.
    /// 3. A replayed forward has got what the captured one got.
    /// 4. Hosts that can write pages themselves (storage NONE or BORROWED, an exported pool) are not
    ///    asked: they write every layer before end, or set the flag.
    ///
    /// Misuse:    KVC_E_INVALID_STATE  The forward is not open; or layers got no K and V (the message
    ///                                 names them, detail = the first), and the forward stays open:
    ///                                 append to them, or abort. CUDA GRAPHS lists what a capture adds.
    /// Threading: exclusive. Device: enqueues.
    /// ```
    pub fn kvc_forward_end(fwd: *mut kvc_forward, err: *mut kvc_error) -> kvc_status;
    /// Undoes the begin.
    ///
    /// ```text
    /// NULL is accepted.
    ///
    /// Lengths, pages, tables, trees, windows and states are as before. Whatever was written to the new
    /// slots is forgotten. Prefix blocks that the begin has evicted and automatic checkpoints that it
    /// has given up do not come back.
    ///
    /// Misuse:    KVC_E_INVALID_STATE  The forward is not open. CUDA GRAPHS lists what a capture adds.
    /// Threading: exclusive. Device: enqueues.
    /// ```
    pub fn kvc_forward_abort(fwd: *mut kvc_forward, err: *mut kvc_error) -> kvc_status;
    /// Appends k and v (when given), then attends.
    ///
    /// ```text
    /// New token i of a sequence sees every token up to and including itself, tree nodes their
    /// ancestors, all within the windows of layer and sequence.
    ///
    ///           ATTENTION                        MLA (absorbed form)
    ///   q       [>= T, num_q_heads, k_dim]       [>= T, num_q_heads, latent_rank + latent_rope_dim]
    ///   k       [>= T, num_kv_heads, k_dim]      [>= T, 1, latent_rank + latent_rope_dim]: latents
    ///   v       [>= T, num_kv_heads, v_dim]      NULL
    ///   out     [>= T, num_q_heads, v_dim]       [>= T, num_q_heads, latent_rank]
    ///   lse     float32 [>= T, num_q_heads]      the same
    ///
    /// 1. K = V layers: v is NULL. SHARED layers: k and v are NULL, and the source layer was appended to
    ///    before. MLA: opt->scale must be given.
    /// 2. k and v both NULL: the slots of this forward were filled before by kvc_kv_append or
    ///    kvc_mla_append.
    ///
    /// Misuse:    common; and
    ///            KVC_E_INVALID_ARGUMENT  One of k and v is NULL, or one is set that has to be NULL.
    ///            KVC_E_INVALID_STATE     k and v are NULL and nothing was appended, unless the host can
    ///                                    write the pool itself (borrowed or exported).
    /// Threading: one call at a time per forward. Device: enqueues.
    /// ```
    pub fn kvc_attn(
        fwd: *mut kvc_forward,
        layer: i32,
        opt: *const kvc_attn_opt,
        q: *const DLTensor,
        k: *const DLTensor,
        v: *const DLTensor,
        out: *mut DLTensor,
        lse: *mut DLTensor,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Does what kvc_attn does on one packed tensor.
    ///
    /// ```text
    /// qkv   [>= T, num_q_heads + 2*num_kv_heads, k_dim]: q heads, then k heads, then v heads
    ///   out   [>= T, num_q_heads, v_dim]
    ///
    /// Misuse:    common; and
    ///            KVC_E_UNSUPPORTED  k_dim differs from v_dim, or a K = V layer.
    /// Threading: one call at a time per forward. Device: enqueues.
    /// ```
    pub fn kvc_attn_fused_qkv(
        fwd: *mut kvc_forward,
        layer: i32,
        opt: *const kvc_attn_opt,
        qkv: *const DLTensor,
        out: *mut DLTensor,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Writes k and v into the slots of this forward of an ATTENTION layer.
    ///
    /// ```text
    /// k   [>= T, num_kv_heads, k_dim]
    ///   v   [>= T, num_kv_heads, v_dim]; K = V layers: NULL
    ///
    /// Rows are rotated where the layer's rope mode is ON_APPEND, and rounded to nearest even to the
    /// storage types.
    ///
    /// Misuse:    common; and
    ///            KVC_E_INVALID_ARGUMENT  v is NULL, or is set on a K = V layer.
    /// Threading: one call at a time per forward. Device: enqueues.
    /// ```
    pub fn kvc_kv_append(
        fwd: *mut kvc_forward,
        layer: i32,
        k: *const DLTensor,
        v: *const DLTensor,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Writes latents into the slots of this forward of an MLA layer.
    ///
    /// ```text
    /// latent   [>= T, latent_rank + latent_rope_dim], or [>= T, 1, latent_rank + latent_rope_dim]
    ///
    /// The last latent_rope_dim elements are rotated where the layer's rope mode is ON_APPEND.
    ///
    /// Misuse:    common.
    /// Threading: one call at a time per forward. Device: enqueues.
    /// ```
    pub fn kvc_mla_append(
        fwd: *mut kvc_forward,
        layer: i32,
        latent: *const DLTensor,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Computes the keys of the full blocks of `num_tokens` tokens.
    ///
    /// ```text
    /// The result is the same in every
    /// process and language.
    ///
    ///   out_hashes   [num_tokens / block_tokens][KVC_HASH_BYTES]; *len counts keys, see ARRAYS OUT
    ///
    /// Misuse:    KVC_E_INVALID_ARGUMENT  block_tokens < 1, NULL arrays, a key of type 0.
    ///            KVC_E_OUT_OF_RANGE      Salt or key longer than 4096 bytes, offset < 0, more than 1024
    ///                                    keys, too many tokens.
    /// Threading: any. Device: host only.
    /// ```
    pub fn kvc_prefix_hash(
        tokens: *const i32,
        num_tokens: usize,
        block_tokens: i32,
        salt: *const c_void,
        salt_size: usize,
        keys: *const kvc_prefix_key,
        num_keys: usize,
        out_hashes: *mut u8,
        len: *mut usize,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Returns the leading tokens that kvc_prefix_attach would find now.
    ///
    /// ```text
    /// Of what lies on the host, that is only as much as pages are available, and a quota leaves room,
    /// to bring it back. The call changes nothing and counts in no metric.
    ///
    /// Misuse of all functions that take a query; comments below say "query":
    ///            KVC_E_INVALID_ARGUMENT  NULL; neither tokens nor hashes; a key of type 0.
    ///            KVC_E_OUT_OF_RANGE      A length, count, offset or priority beyond its limit.
    ///            KVC_E_UNSUPPORTED       The cache has a CROSS layer.
    /// Threading: shared. Device: host only.
    /// ```
    pub fn kvc_prefix_match(
        cache: *const kvc_cache,
        query: *const kvc_prefix_query,
        out_tokens: *mut i64,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Adds `seq` with the longest hit, in the query's namespace: later forwards with `tokens`
    /// publish there.
    ///
    /// ```text
    /// Its length is then *out_tokens, which is 0 when nothing hits. Pages on the host are copied back
    /// as long as pages are available; the hit is shorter when they are not.
    ///
    /// Misuse:    query; and
    ///            KVC_E_INVALID_ARGUMENT  seq < 0.
    ///            KVC_E_ALREADY_EXISTS    The id is taken.
    ///            KVC_E_BUSY              A forward is open.
    /// Threading: exclusive. Device: enqueues.
    /// ```
    pub fn kvc_prefix_attach(
        cache: *mut kvc_cache,
        seq: kvc_seq,
        query: *const kvc_prefix_query,
        out_tokens: *mut i64,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// States that the first query->num_tokens tokens of `seq` are these, in this namespace, and
    /// publishes their full blocks.
    ///
    /// ```text
    /// query->num_tokens is at most the length. The call replaces what was known of the sequence.
    /// *out_tokens: tokens of it that are in the index now. Publishing stops at the first token that a
    /// KVC_FORWARD_PARTIAL has left unwritten. Where a quota makes older blocks go to the host, that
    /// copy is enqueued.
    ///
    /// Misuse:    query; and
    ///            KVC_E_NOT_FOUND      No such sequence.
    ///            KVC_E_OUT_OF_RANGE   More tokens than the sequence has.
    ///            KVC_E_BUSY           A forward is open.
    ///            KVC_E_INVALID_STATE  Swapped out; an uncommitted tree; positions moved by
    ///                                 kvc_seq_shift; a window set by kvc_seq_set_window; values written
    ///                                 by kvc_debug_set_*; or older than kvc_prefix_reset.
    /// Threading: exclusive. Device: host only.
    /// ```
    pub fn kvc_prefix_insert(
        cache: *mut kvc_cache,
        seq: kvc_seq,
        query: *const kvc_prefix_query,
        out_tokens: *mut i64,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Keeps the full blocks of the query that are in the index, on the device, from being evicted.
    ///
    /// ```text
    /// Pins count: each needs its own kvc_prefix_unpin. Pinned pages are not available. *out_tokens:
    /// tokens pinned.
    ///
    /// Misuse:    query.
    /// Threading: exclusive. Device: host only.
    /// ```
    pub fn kvc_prefix_pin(
        cache: *mut kvc_cache,
        query: *const kvc_prefix_query,
        out_tokens: *mut i64,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Undoes one kvc_prefix_pin of the same query.
    ///
    /// ```text
    /// *out_tokens: tokens of the leading blocks that were
    /// pinned.
    ///
    /// Misuse:    query.
    /// Threading: exclusive. Device: host only.
    /// ```
    pub fn kvc_prefix_unpin(
        cache: *mut kvc_cache,
        query: *const kvc_prefix_query,
        out_tokens: *mut i64,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Evicts until at least `pages` device pages are given up, or nothing evictable is left.
    ///
    /// ```text
    /// Their contents go to the host when it has room, and are dropped otherwise. *out_freed: how many
    /// device pages.
    ///
    /// Misuse:    KVC_E_OUT_OF_RANGE  pages is negative.
    /// Threading: exclusive. Device: enqueues.
    /// ```
    pub fn kvc_prefix_evict(
        cache: *mut kvc_cache,
        pages: i64,
        out_freed: *mut i64,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Forgets the whole index, pins and host copies too (new weights), and detaches all tiers.
    ///
    /// ```text
    /// Sequences keep their pages, but what they have computed so far is never published. State files of
    /// the old weights are loaded with KVC_LOAD_NO_PUBLISH.
    ///
    /// Misuse:    KVC_E_BUSY  A forward is open.
    /// Threading: exclusive. Device: host only.
    /// ```
    pub fn kvc_prefix_reset(cache: *mut kvc_cache, err: *mut kvc_error) -> kvc_status;
    /// Gives the namespace `salt` a quota; 0: no quota.
    ///
    /// ```text
    /// The device pages and states that the index holds for it stay within max_bytes. What does not fit
    /// replaces its own least recently used blocks, or is not published. Other namespaces' traffic
    /// evicts its blocks only when nothing else can be evicted. Shrinking evicts at once what is not in
    /// use; copies to the host are enqueued.
    ///
    /// `salt`: borrowed for the call.
    ///
    /// Misuse:    KVC_E_OUT_OF_RANGE      Salt longer than 4096 bytes, or more than 4096 namespaces with
    ///                                    quotas.
    ///            KVC_E_INVALID_ARGUMENT  salt is NULL and salt_size is not 0.
    /// Threading: exclusive. Device: host only.
    /// ```
    pub fn kvc_prefix_quota_set(
        cache: *mut kvc_cache,
        salt: *const c_void,
        salt_size: usize,
        max_bytes: u64,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Takes the oldest unpolled events, at most \*count of them.
    ///
    /// ```text
    /// out[0].struct_size is the stride of the array, and is written with the bytes filled: set it again
    /// before the next call. *count on return: events written. When more than config.event_capacity
    /// wait, the oldest are lost, which the next event's number shows.
    ///
    /// Misuse:    KVC_E_UNSUPPORTED  config.event_capacity is 0.
    /// Threading: exclusive. Device: host only.
    /// ```
    pub fn kvc_events_poll(
        cache: *mut kvc_cache,
        out: *mut kvc_event,
        count: *mut usize,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Writes everything that the index holds as STORED events, parents before their children; see
    /// ARRAYS OUT.
    ///
    /// ```text
    /// *out_number: the number of the last event that they include. Apply polled events with larger
    /// ones.
    ///
    /// Threading: shared. Device: host only.
    /// ```
    pub fn kvc_events_snapshot(
        cache: *const kvc_cache,
        out: *mut kvc_event,
        count: *mut usize,
        out_number: *mut u64,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Moves sequences to the host: their pages, the states of STATE layers, their checkpoints.
    ///
    /// ```text
    /// Pages and states that several of them share stay shared. Pages that others or the prefix index
    /// hold stay on the device as well. A swapped sequence keeps id, length and namespace. Until it is
    /// swapped in, only kvc_seq_remove, kvc_seq_length, kvc_seq_info_get, kvc_seq_list and kvc_swap_in
    /// take it; others answer KVC_E_INVALID_STATE.
    ///
    /// Expected:  KVC_E_NO_PAGES          The host pool is full (detail = missing host pages).
    ///            KVC_E_NO_MEMORY         Host memory for states.
    /// Misuse:    KVC_E_NOT_FOUND         No such sequence.
    ///            KVC_E_INVALID_ARGUMENT  n = 0, duplicate ids.
    ///            KVC_E_INVALID_STATE     Swapped already; an uncommitted tree; the host pool is used by
    ///                                    page ids.
    ///            KVC_E_BUSY              A sequence of the open forward.
    ///            KVC_E_UNSUPPORTED       No host budget.
    /// Threading: exclusive. Device: enqueues.
    /// ```
    pub fn kvc_swap_out(
        cache: *mut kvc_cache,
        n: usize,
        seqs: *const kvc_seq,
        stream: kvc_stream,
        out_fence: *mut *mut kvc_fence,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Brings swapped sequences back to the device.
    ///
    /// ```text
    /// What sequences of one kvc_swap_out shared is shared
    /// again when they come back in one call.
    ///
    /// Expected:  KVC_E_NO_PAGES       detail = pages and state slots missing.
    /// Misuse:    KVC_E_INVALID_STATE  Not swapped.
    ///            Others as kvc_swap_out.
    /// Threading: exclusive. Device: enqueues.
    /// ```
    pub fn kvc_swap_in(
        cache: *mut kvc_cache,
        n: usize,
        seqs: *const kvc_seq,
        stream: kvc_stream,
        out_fence: *mut *mut kvc_fence,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Copies whole pages (all layers) between the device pool and the host pool.
    ///
    /// ```text
    /// pairs   int64 [n, 2] on the CPU of (from, to), any n >= 0; borrowed for the call
    ///
    /// Runs of pages that are adjacent in both pools, ascending or descending, are copied at once. The
    /// tables of sequences are not looked at: on the device, any page may be named.
    ///
    /// Misuse:    tensors                 pairs.
    ///            KVC_E_OUT_OF_RANGE      A page id (detail = row).
    ///            KVC_E_INVALID_ARGUMENT  A destination twice (detail = row).
    ///            KVC_E_UNSUPPORTED       No storage, no host budget, unknown direction.
    ///            KVC_E_INVALID_STATE     The host pool is used by sequences and the prefix index.
    ///            KVC_E_BUSY              A forward or a transfer is open, and K of a sequence waits to
    ///                                    be rotated (kvc_seq_shift).
    /// Threading: exclusive. Device: enqueues.
    /// ```
    pub fn kvc_pages_swap(
        cache: *mut kvc_cache,
        pairs: *const DLTensor,
        direction: kvc_swap_direction,
        stream: kvc_stream,
        out_fence: *mut *mut kvc_fence,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Copies whole pages inside the device pool, as kvc_pages_swap does between pools.
    ///
    /// ```text
    /// Misuse:    tensors                 pairs.
    ///            KVC_E_OUT_OF_RANGE      A page id (detail = row).
    ///            KVC_E_INVALID_ARGUMENT  A destination twice (detail = row); or a page that is source
    ///                                    of one pair and destination of another, whose result would
    ///                                    depend on the order.
    ///            KVC_E_UNSUPPORTED       No storage.
    ///            KVC_E_BUSY              A forward or a transfer is open, and K of a sequence waits to
    ///                                    be rotated (kvc_seq_shift).
    ///            KVC_E_INVALID_STATE     Such a sequence is swapped out.
    /// Threading: exclusive. Device: enqueues.
    /// ```
    pub fn kvc_pages_copy(
        cache: *mut kvc_cache,
        pairs: *const DLTensor,
        stream: kvc_stream,
        out_fence: *mut *mut kvc_fence,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Copies a layer's parts of pages to the host, as they are stored.
    ///
    /// ```text
    /// ids   int64 [n] on the CPU, any n >= 0
    ///   out   uint8 [n, kvc_layer_info.page_bytes] on the CPU, contiguous rows: a row is what
    ///         kvc_export_pool shows as KVC_POOL_BYTES
    ///
    /// Pages of equal kvc_layout_fingerprint can be imported elsewhere as they are. SHARED layers: the
    /// source's. The tables of sequences are not looked at: any page may be named. A page of a sequence
    /// on its way (kvc_transfer_recv) is being written by the transport's thread: do not name it.
    ///
    /// Misuse:    tensors                 ids, out.
    ///            KVC_E_OUT_OF_RANGE      layer; a page id (detail = row).
    ///            KVC_E_UNSUPPORTED       No storage; a layer without pages.
    /// Threading: shared. Device: blocks until done.
    /// ```
    pub fn kvc_pages_export(
        cache: *const kvc_cache,
        layer: i32,
        ids: *const DLTensor,
        out: *mut DLTensor,
        stream: kvc_stream,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Copies bytes of the host into a layer's parts of pages: the way back of kvc_pages_export.
    ///
    /// ```text
    /// ids   int64 [n] on the CPU, any n >= 0
    ///   in    uint8 [n, kvc_layer_info.page_bytes] on the CPU, contiguous rows
    ///
    /// kvc_seq_reserve makes a sequence with pages to import into, and says how imported rows are found
    /// as prefixes. From here on the host program counts as writing the pool itself, as after
    /// kvc_export_pool.
    ///
    /// Misuse:    tensors                 ids, in.
    ///            KVC_E_OUT_OF_RANGE      layer; a page id (detail = row).
    ///            KVC_E_INVALID_ARGUMENT  A page twice (detail = row).
    ///            KVC_E_UNSUPPORTED       No storage; a layer without pages.
    ///            KVC_E_BUSY              A forward or a transfer is open, and K of a sequence waits to
    ///                                    be rotated (kvc_seq_shift).
    ///            KVC_E_INVALID_STATE     Such a sequence is swapped out.
    /// Threading: exclusive. Device: blocks until done.
    /// ```
    pub fn kvc_pages_import(
        cache: *mut kvc_cache,
        layer: i32,
        ids: *const DLTensor,
        in_: *const DLTensor,
        stream: kvc_stream,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Asks whether the copies are complete: \*out_done is 1 when they are, else 0.
    ///
    /// ```text
    /// Threading: any. Device: host only.
    /// ```
    pub fn kvc_fence_query(
        fence: *const kvc_fence,
        out_done: *mut i32,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Waits for the copies, at most timeout_ns nanoseconds; negative: for ever.
    ///
    /// ```text
    /// Expected:  KVC_E_TIMEOUT  Not done by then.
    /// Threading: any. Device: blocks until done.
    /// ```
    pub fn kvc_fence_wait(
        fence: *const kvc_fence,
        timeout_ns: i64,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Lets what is enqueued on `stream` from now on wait for the copies.
    ///
    /// ```text
    /// On the CPU: waits here.
    ///
    /// Threading: any. Device: enqueues on the stream.
    /// ```
    pub fn kvc_fence_wait_on_stream(
        fence: *const kvc_fence,
        stream: kvc_stream,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Destroys a fence.
    ///
    /// ```text
    /// NULL is accepted. The copies go on. A fence may outlive its cache.
    ///
    /// Threading: any, once. Device: host only.
    /// ```
    pub fn kvc_fence_destroy(fence: *mut kvc_fence);
    /// Writes the fingerprint of the plan's layout, a text of 81 letters; see ARRAYS OUT.
    ///
    /// ```text
    /// It is equal
    /// exactly where pages and states can move between two caches without a change.
    ///
    /// Threading: any. Device: host only.
    /// ```
    pub fn kvc_layout_fingerprint(
        plan: *const kvc_plan,
        buf: *mut c_char,
        len: *mut usize,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Saves n >= 1 sequences as a state file.
    ///
    /// ```text
    /// *out_bytes: its size, also where it does not fit.
    ///
    /// Statuses of bad descs and files, which comments call "state file":
    ///   Expected:  KVC_E_IO                A file, or the function, failed (sys_code = errno).
    ///   Misuse:    KVC_E_INVALID_ARGUMENT  Not exactly one place; a model_id that is too long.
    ///
    /// Expected:  state file; and
    ///            KVC_E_BUFFER_TOO_SMALL  desc->size; what was written is of no use.
    /// Misuse:    state file; and
    ///            KVC_E_NOT_FOUND         No such sequence.
    ///            KVC_E_INVALID_ARGUMENT  n = 0, duplicate ids.
    ///            KVC_E_INVALID_STATE     Swapped out; an uncommitted tree.
    ///            KVC_E_BUSY              A sequence of the open forward.
    ///            KVC_E_UNSUPPORTED       No storage.
    /// Threading: shared. Device: blocks until done.
    /// ```
    pub fn kvc_seq_save(
        cache: *const kvc_cache,
        n: usize,
        seqs: *const kvc_seq,
        desc: *const kvc_save_desc,
        stream: kvc_stream,
        out_bytes: *mut u64,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Adds the sequences of a state file under new ids, in the order in which they were saved.
    ///
    /// ```text
    /// Their full blocks are published to the prefix index, and blocks that it knows already are shared.
    /// A file is read once, or twice where room has to be made: a damaged file then evicts nothing.
    ///
    /// Expected:  state file; and
    ///            KVC_E_NO_PAGES          detail = pages and state slots missing.
    ///            KVC_E_CORRUPT           The file is damaged or truncated; the message says where.
    ///            KVC_E_VERSION           A newer format, or another byte order.
    /// Misuse:    state file; and
    ///            KVC_E_INVALID_ARGUMENT  No state file; another model_id; n is not its number of
    ///                                    sequences (detail); negative or duplicate ids.
    ///            KVC_E_ALREADY_EXISTS    An id is taken.
    ///            KVC_E_NEVER_FITS        More pages than the cache has.
    ///            KVC_E_UNSUPPORTED       Another layout; no storage.
    ///            KVC_E_BUSY              A forward is open.
    /// Threading: exclusive; a thread reads ahead unless config.num_threads is 1.
    /// Device:    blocks until done.
    /// ```
    pub fn kvc_seq_load(
        cache: *mut kvc_cache,
        desc: *const kvc_load_desc,
        n: usize,
        seqs: *const kvc_seq,
        stream: kvc_stream,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Reads and checks a whole state file without a cache, and writes what it holds as JSON; see
    /// ARRAYS OUT.
    ///
    /// ```text
    /// "format"       of the file
    ///   "bytes"        its size
    ///   "fingerprint"  of its layout; "layout": the fields behind it
    ///   "model_id"
    ///   "num_pages", "num_states", "page_bytes", "state_bytes"
    ///   "sequences"    each with "id" (at its saving), "length", "cross_length", "num_known_tokens",
    ///                  "num_checkpoints", "window", "sink", "namespace" (root of its keys);
    ///                  "k_ahead", "k_ahead_begin": rotated K of tokens from there on stands so many
    ///                  positions ahead (kvc_seq_shift)
    ///
    /// Expected:  state file; KVC_E_CORRUPT and KVC_E_VERSION as kvc_seq_load.
    /// Misuse:    state file; KVC_E_INVALID_ARGUMENT as kvc_seq_load.
    /// Threading: any. Device: host only.
    /// ```
    pub fn kvc_state_file_describe(
        desc: *const kvc_load_desc,
        buf: *mut c_char,
        len: *mut usize,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Opens a transport.
    ///
    /// ```text
    /// *out is owned by the caller: kvc_transport_destroy.
    ///
    /// Expected:  KVC_E_ALREADY_EXISTS    "loopback": desc->address is taken.
    ///            KVC_E_IO                The system has no pipe or no random bytes; "ucx": the address
    ///                                    is taken or not of this machine, or UCX does not start
    ///                                    (sys_code = errno).
    ///            KVC_E_UNSUPPORTED       "ucx": its module is not there, or does not match.
    /// Misuse:    KVC_E_INVALID_ARGUMENT  desc->address, negative times.
    ///            KVC_E_UNSUPPORTED       desc->engine, flags.
    /// Threading: any. Device: host only.
    /// ```
    pub fn kvc_transport_open(
        desc: *const kvc_transport_desc,
        out: *mut *mut kvc_transport,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Where peers reach it, a text; see ARRAYS OUT.
    ///
    /// ```text
    /// Tickets contain it.
    ///
    /// Threading: any. Device: host only.
    /// ```
    pub fn kvc_transport_address(
        transport: *const kvc_transport,
        buf: *mut c_char,
        len: *mut usize,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// A descriptor that is readable (POLLIN) when kvc_transport_progress has work.
    ///
    /// ```text
    /// The transport owns
    /// it. Timers do not make it readable: progress is called every desc->beat_ns at least.
    ///
    /// Misuse:    KVC_E_INVALID_STATE  Not with KVC_TRANSPORT_MANUAL_PROGRESS.
    /// Threading: any. Device: host only.
    /// ```
    pub fn kvc_transport_fd(
        transport: *const kvc_transport,
        out_fd: *mut i32,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Does what is due, after waiting at most timeout_ns for something.
    ///
    /// ```text
    /// Misuse:    KVC_E_INVALID_STATE  Not with KVC_TRANSPORT_MANUAL_PROGRESS.
    /// Threading: any. Device: host only.
    /// ```
    pub fn kvc_transport_progress(
        transport: *mut kvc_transport,
        timeout_ns: i64,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Fills \*out.
    ///
    /// ```text
    /// Threading: any. Device: host only.
    /// ```
    pub fn kvc_transport_stats_get(
        transport: *const kvc_transport,
        out: *mut kvc_transport_stats,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Takes no new transfers, and waits for the open ones.
    ///
    /// ```text
    /// What has not ended after timeout_ns is
    /// cancelled and broken off. What has arrived stays.
    ///
    /// Expected:  KVC_E_TIMEOUT  Transfers were cancelled.
    /// Threading: any. Device: host only.
    /// ```
    pub fn kvc_transport_close(
        transport: *mut kvc_transport,
        timeout_ns: i64,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Destroys a transport.
    ///
    /// ```text
    /// Open transfers end as cancelled; their handles stay valid, and what has
    /// arrived can still be waited for. NULL is accepted.
    ///
    /// Threading: any, once. Device: host only.
    /// ```
    pub fn kvc_transport_destroy(transport: *mut kvc_transport);
    /// Reserves room for a sequence and waits for its sender.
    ///
    /// ```text
    /// *out is owned by the caller:
    /// kvc_transfer_destroy.
    ///
    /// Expected:  KVC_E_NO_PAGES          detail = pages and state slots missing.
    ///            KVC_E_NEVER_FITS        More pages than the cache has.
    /// Misuse:    KVC_E_INVALID_ARGUMENT  num_tokens < 1, begin or cross_length < 0, model_id, seq < 0;
    ///                                    tp_rank, tp_size, sender_tp_size.
    ///            KVC_E_NOT_FOUND         begin > 0, and no such sequence.
    ///            KVC_E_OUT_OF_RANGE      begin is not the length; limits of the configuration.
    ///            KVC_E_INVALID_STATE     It has an uncommitted tree or is swapped out; the transport is
    ///                                    closed.
    ///            KVC_E_BUSY              A forward is open.
    ///            KVC_E_UNSUPPORTED       No storage; a pool on CUDA; flags; more layer groups than a
    ///                                    ticket of 4,096 bytes describes; KV heads that the senders
    ///                                    cannot share.
    /// Threading: exclusive. Device: host only.
    /// ```
    pub fn kvc_transfer_recv(
        cache: *mut kvc_cache,
        transport: *mut kvc_transport,
        desc: *const kvc_recv_desc,
        out: *mut *mut kvc_transfer,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// What the sender needs, at most 4,096 bytes; see ARRAYS OUT.
    ///
    /// ```text
    /// It is of use once. It names transport
    /// and tokens, and is to be kept from strangers.
    ///
    /// Misuse:    KVC_E_INVALID_STATE  The transfer sends.
    /// Threading: any. Device: host only.
    /// ```
    pub fn kvc_transfer_ticket(
        transfer: *const kvc_transfer,
        buf: *mut c_void,
        len: *mut usize,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Sends a sequence to the writer of a ticket.
    ///
    /// ```text
    /// *out is owned by the caller: kvc_transfer_destroy.
    ///
    /// Expected:  KVC_E_PEER              Nobody listens at the address of the ticket.
    /// Misuse:    KVC_E_INVALID_ARGUMENT  No ticket; begin; mode; model_id; tp_rank, tp_size.
    ///            KVC_E_CORRUPT           The ticket is damaged.
    ///            KVC_E_VERSION           The ticket is of another version.
    ///            KVC_E_NOT_FOUND         No such sequence.
    ///            KVC_E_OUT_OF_RANGE      Its length, or its encoder tokens, are not the ticket's;
    ///                                    AS_COMPUTED: it is longer.
    ///            KVC_E_INVALID_STATE     It has an uncommitted tree or is swapped out; the transport is
    ///                                    closed.
    ///            KVC_E_BUSY              A forward is open; the ticket is in use here.
    ///            KVC_E_UNSUPPORTED       No storage; a pool on CUDA; a ticket for another engine, or of
    ///                                    another number of layer groups; flags.
    /// Threading: exclusive. Device: host only.
    /// ```
    pub fn kvc_transfer_send(
        cache: *mut kvc_cache,
        transport: *mut kvc_transport,
        desc: *const kvc_send_desc,
        out: *mut *mut kvc_transfer,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Fills \*out.
    ///
    /// ```text
    /// Threading: any. Device: host only.
    /// ```
    pub fn kvc_transfer_query(
        transfer: *const kvc_transfer,
        out: *mut kvc_transfer_info,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Waits for the end, at most timeout_ns.
    ///
    /// ```text
    /// KVC_OK: all is sent, or the sequence is an ordinary one.
    /// Otherwise the status is that of kvc_transfer_info and the message says why.
    ///
    /// Expected:  KVC_E_TIMEOUT  Not over by then, or the transfer's own (kvc_transfer_query tells).
    ///            KVC_E_BUSY     It has arrived, and a forward is open: wait again after its end.
    ///            Others as kvc_transfer_info.status.
    /// Misuse:    KVC_E_INVALID_STATE  It has arrived, and its cache is gone.
    /// Threading: exclusive, on the cache of a receiving transfer; any for a sending one. To wait beside
    ///            other calls on the cache, wait for kvc_transfer_fence.
    /// Device:    host only.
    /// ```
    pub fn kvc_transfer_wait(
        transfer: *mut kvc_transfer,
        timeout_ns: i64,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// A fence that is done when the transfer has arrived, is done or has failed.
    ///
    /// ```text
    /// *out is owned by the
    /// caller: kvc_fence_destroy.
    ///
    /// Threading: any. Device: host only.
    /// ```
    pub fn kvc_transfer_fence(
        transfer: *const kvc_transfer,
        out: *mut *mut kvc_fence,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Ends a transfer; the other side is told.
    ///
    /// ```text
    /// kvc_transfer_wait says when nothing is on its way any
    /// more. One that is over stays as it is. One that has arrived, and is not a sequence yet, is given
    /// up.
    ///
    /// Threading: any. Device: host only.
    /// ```
    pub fn kvc_transfer_cancel(transfer: *mut kvc_transfer, err: *mut kvc_error) -> kvc_status;
    /// Destroys the handle, and cancels what is not over.
    ///
    /// ```text
    /// What has arrived becomes a sequence all the
    /// same. NULL is accepted. A handle may outlive its cache and its transport.
    ///
    /// Threading: any, once. Device: host only.
    /// ```
    pub fn kvc_transfer_destroy(transfer: *mut kvc_transfer);
    /// Attaches a tier to a cache.
    ///
    /// ```text
    /// Tiers are asked in the order in which they were attached.
    ///
    /// Expected:  KVC_E_UNSUPPORTED       The module is missing, and the message names the file looked
    ///                                    for; a cache without storage, or with layers of kind CROSS.
    ///            KVC_E_IO                The folder or the server cannot be used (sys_code = errno).
    ///            KVC_E_BUSY              FILE: another process, or cache, uses the folder.
    ///            KVC_E_TIMEOUT           REDIS: no answer within connect_ms.
    ///            KVC_E_NO_MEMORY         The queue could not be allocated.
    /// Misuse:    KVC_E_ALREADY_EXISTS    A tier of this kind is attached.
    ///            KVC_E_INVALID_ARGUMENT  Another tier; no address; no byte_limit for FILE; a field that
    ///                                    this kind of tier has no use for; a text that is too long.
    ///            KVC_E_OUT_OF_RANGE      A negative time or shard; queue_bytes above 1 TiB.
    /// Threading: exclusive. Device: host only.
    /// ```
    pub fn kvc_tier_attach(
        cache: *mut kvc_cache,
        desc: *const kvc_tier_desc,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// kvc_tier_attach of a FILE tier with nothing but a folder and its limit.
    ///
    /// ```text
    /// Expected, Misuse: as kvc_tier_attach.
    /// Threading: exclusive. Device: host only.
    /// ```
    pub fn kvc_tier_attach_file(
        cache: *mut kvc_cache,
        path: *const c_char,
        byte_limit: u64,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Writes what waits and closes the tier, as kvc_cache_destroy does for all.
    ///
    /// ```text
    /// Misuse:    KVC_E_NOT_FOUND         No such tier is attached.
    ///            KVC_E_INVALID_ARGUMENT  Another tier than FILE and REDIS.
    /// Threading: exclusive. Device: host only; blocks until done.
    /// ```
    pub fn kvc_tier_detach(
        cache: *mut kvc_cache,
        tier: kvc_tier,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Waits until the blocks that were published so far are written, or dropped.
    ///
    /// ```text
    /// timeout_ms < 0: as
    /// long as it takes.
    ///
    /// Expected:  KVC_E_TIMEOUT  Some still wait.
    /// Threading: shared. Device: host only; blocks until done.
    /// ```
    pub fn kvc_tier_flush(
        cache: *const kvc_cache,
        timeout_ms: i64,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Reports the counters of a tier.
    ///
    /// ```text
    /// Misuse:    KVC_E_NOT_FOUND         No such tier is attached.
    ///            KVC_E_INVALID_ARGUMENT  Another tier than FILE and REDIS.
    /// Threading: shared. Device: host only.
    /// ```
    pub fn kvc_tier_stats_get(
        cache: *const kvc_cache,
        tier: kvc_tier,
        out: *mut kvc_tier_stats,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Accepts a path of each sequence's token tree.
    ///
    /// ```text
    /// root -> leaves[i] becomes committed tokens, moved together in every layer. All other nodes are
    /// dropped. Leaf -1 keeps nothing. Any subset of the sequences with trees, in any order. `seqs` and
    /// `leaves`, [n], are borrowed for the call.
    ///
    /// Misuse:    KVC_E_NOT_FOUND         No such sequence.
    ///            KVC_E_INVALID_ARGUMENT  n = 0, NULL arrays, duplicate ids.
    ///            KVC_E_INVALID_STATE     A sequence without an uncommitted tree, or swapped out.
    ///            KVC_E_OUT_OF_RANGE      leaf < -1, or no such node.
    ///            KVC_E_BUSY              A sequence of the open forward.
    /// Threading: exclusive. Device: enqueues.
    /// ```
    pub fn kvc_tree_commit(
        cache: *mut kvc_cache,
        n: usize,
        seqs: *const kvc_seq,
        leaves: *const i32,
        stream: kvc_stream,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Attends among the new tokens only, causal inside each sequence.
    ///
    /// ```text
    /// Nothing is appended and no page is read. k and v are rounded to the layer's storage type and
    /// rotated as an append would do, so that merging with kvc_attn_cached equals kvc_attn.
    ///
    ///           ATTENTION                        MLA (ragged form)
    ///   q       [>= T, num_q_heads, k_dim]       [>= T, num_q_heads, k_dim]
    ///   k       [>= T, num_kv_heads, k_dim]      [>= T, num_q_heads, k_dim]
    ///   v       [>= T, num_kv_heads, v_dim]      [>= T, num_q_heads, v_dim]
    ///   out     [>= T, num_q_heads, v_dim]       [>= T, num_q_heads, v_dim]
    ///   lse     float32 [>= T, num_q_heads]      the same
    ///
    /// 1. K = V layers: v is NULL. MLA: v is given; over quantised latents, k and v are rounded to
    ///    bfloat16.
    /// 2. MLA: for the whole prompt merge with kvc_attn_cached, whose latent output the caller has
    ///    projected to v_dim.
    /// 3. Sink logits enter the denominator of this part alone. To merge parts of a model with sink
    ///    logits, leave them out of both, and multiply the merged output by
    ///    1 / (1 + exp(sink_logits[h] - lse)).
    ///
    /// Misuse:    common; and
    ///            KVC_E_UNSUPPORTED       A token tree of several forwards; an MLA layer planned with
    ///                                    k_dim = 0; quantised storage on CUDA.
    ///            KVC_E_INVALID_ARGUMENT  v is NULL, or is set on a K = V layer.
    ///            KVC_E_INVALID_STATE     In a capture: tables would have to grow. Run a forward with
    ///                                    the call before the capture.
    /// Threading: one call at a time per forward. Device: enqueues.
    /// ```
    pub fn kvc_attn_self(
        fwd: *mut kvc_forward,
        layer: i32,
        opt: *const kvc_attn_opt,
        q: *const DLTensor,
        k: *const DLTensor,
        v: *const DLTensor,
        out: *mut DLTensor,
        lse: *mut DLTensor,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Attends from the new queries to the tokens that were cached before this forward.
    ///
    /// ```text
    /// Those are all that the windows show; for token trees, the committed tokens. Nothing is appended.
    /// A sequence that was empty has out 0 and lse -inf. q, out and lse are those of kvc_attn.
    ///
    /// Misuse:    common.
    /// Threading: one call at a time per forward. Device: enqueues.
    /// ```
    pub fn kvc_attn_cached(
        fwd: *mut kvc_forward,
        layer: i32,
        opt: *const kvc_attn_opt,
        q: *const DLTensor,
        out: *mut DLTensor,
        lse: *mut DLTensor,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Merges two partial attentions over disjoint keys, in place into (out, lse).
    ///
    /// ```text
    /// out, other_out   [>= T, H, D], any activation types
    ///   lse, other_lse   float32 [>= T, H]
    ///
    /// The weights are exp(lse) (Dao et al., FlashDecoding). A part with lse -inf does not count.
    ///
    /// Misuse:    KVC_E_INVALID_STATE     The forward is not open.
    ///            KVC_E_INVALID_ARGUMENT  Overlapping tensors.
    ///            tensors                 See TENSORS.
    /// Threading: one call at a time per forward. Device: enqueues.
    /// ```
    pub fn kvc_attn_merge(
        fwd: *mut kvc_forward,
        out: *mut DLTensor,
        lse: *mut DLTensor,
        other_out: *const DLTensor,
        other_lse: *const DLTensor,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Attends from every new token to all encoder tokens of its sequence, on a CROSS layer.
    ///
    /// ```text
    /// q     [>= T, num_q_heads, k_dim]
    ///   k     [>= C, num_kv_heads, k_dim], C = sum of kvc_forward_desc.cross_lengths
    ///   v     [>= C, num_kv_heads, v_dim]; K = V layers: NULL
    ///   out   [>= T, num_q_heads, v_dim]
    ///   lse   float32 [>= T, num_q_heads]
    ///
    /// k and v are packed in the order of the batch. They are given in the forward that announced them,
    /// and NULL otherwise. Nothing is rotated. A sequence without encoder tokens has out 0 and lse -inf.
    ///
    /// Misuse:    common; and
    ///            KVC_E_INVALID_STATE     k and v were announced but not given, or not announced.
    ///            KVC_E_INVALID_ARGUMENT  One of k and v is NULL.
    ///            KVC_E_UNSUPPORTED       opt.window or opt.spans.
    /// Threading: one call at a time per forward. Device: enqueues.
    /// ```
    pub fn kvc_attn_cross(
        fwd: *mut kvc_forward,
        layer: i32,
        opt: *const kvc_attn_opt,
        q: *const DLTensor,
        k: *const DLTensor,
        v: *const DLTensor,
        out: *mut DLTensor,
        lse: *mut DLTensor,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Attends to another layer's K and V, which that layer has appended in this forward: what
    /// kvc_attn does on a SHARED layer, for a layer that is not in the plan.
    ///
    /// ```text
    /// q     [>= T, H, k_dim of the source], H any multiple of the source's kv heads
    ///   out   [>= T, H, v_dim of the source]
    ///   lse   float32 [>= T, H]
    ///
    /// q is rotated by the source's rope.
    ///
    /// Misuse:    common; and
    ///            KVC_E_INVALID_STATE  Nothing was appended to the source, as in kvc_attn.
    /// Threading: one call at a time per forward. Device: enqueues.
    /// ```
    pub fn kvc_attn_shared_kv(
        fwd: *mut kvc_forward,
        source_layer: i32,
        opt: *const kvc_attn_opt,
        q: *const DLTensor,
        out: *mut DLTensor,
        lse: *mut DLTensor,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Copies the K and V of one sequence in one layer, as stored.
    ///
    /// ```text
    /// ATTENTION, CROSS                 MLA
    ///   k_out   [>= n, num_kv_heads, k_dim]      [>= n, 1, latent_rank + latent_rope_dim]
    ///   v_out   [>= n, num_kv_heads, v_dim]      NULL
    ///
    /// 1. Any sequence of the cache. n = its length including this forward's new tokens and its tree
    ///    nodes, which come in the order of their slots. CROSS: n = encoder tokens.
    /// 2. Either output may be NULL, not both. K = V layers: v_out is NULL.
    ///
    /// Expected:  KVC_E_OUT_OF_RANGE      A window has dropped tokens (detail = the first kept).
    /// Misuse:    common; and
    ///            KVC_E_NOT_FOUND         seq.
    ///            KVC_E_INVALID_ARGUMENT  Both outputs are NULL, or v_out is set where it has to be
    ///                                    NULL.
    ///            KVC_E_INVALID_STATE     The sequence grows in this forward, and nothing was appended
    ///                                    to the layer (as kvc_attn); or it is swapped out.
    /// Threading: one call at a time per forward. Device: enqueues.
    /// ```
    pub fn kvc_kv_gather(
        fwd: *mut kvc_forward,
        layer: i32,
        seq: kvc_seq,
        k_out: *mut DLTensor,
        v_out: *mut DLTensor,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Reads state `state` of every sequence of the batch.
    ///
    /// ```text
    /// out   [>= B, shape...], any activation type, compact inside a state
    ///
    /// Misuse:    state.
    /// Threading: one call at a time per forward. Device: enqueues.
    /// ```
    pub fn kvc_state_get(
        fwd: *mut kvc_forward,
        layer: i32,
        state: i32,
        out: *mut DLTensor,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Sets state `state` of every sequence of the batch.
    ///
    /// ```text
    /// value   [>= B, shape...], rounded to the state's dtype
    ///
    /// Misuse:    state.
    /// Threading: one call at a time per forward. Device: enqueues.
    /// ```
    pub fn kvc_state_set(
        fwd: *mut kvc_forward,
        layer: i32,
        state: i32,
        value: *const DLTensor,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Keeps the state of the sequence's present length until it is popped below it or removed.
    ///
    /// ```text
    /// That
    /// makes fork and pop to this position possible later.
    ///
    /// On the edge of a block that the sequence has published, the block gets the state too: prefixes
    /// hit there.
    ///
    /// Misuse:    KVC_E_NOT_FOUND      No such sequence.
    ///            KVC_E_BUSY           It is in the open forward.
    ///            KVC_E_UNSUPPORTED    No STATE layer.
    ///            KVC_E_INVALID_STATE  It is swapped out.
    /// Threading: exclusive. Device: host only.
    /// ```
    pub fn kvc_state_checkpoint(
        cache: *mut kvc_cache,
        seq: kvc_seq,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Gives up the checkpoint at position `pos`: its state slot is free once nobody else keeps it.
    ///
    /// ```text
    /// The
    /// sequence cannot be forked or popped to `pos` any more, unless that is its length. What the prefix
    /// index has of it stays there.
    ///
    /// One checkpoint before each round of speculation, given up when the round is over, takes one slot.
    ///
    /// Misuse:    KVC_E_NOT_FOUND      No such sequence (detail = seq), or it has no checkpoint there
    ///                                 (detail = the nearest one below, -1: none).
    ///            KVC_E_BUSY           It is in the open forward.
    ///            KVC_E_UNSUPPORTED    No STATE layer.
    ///            KVC_E_INVALID_STATE  It is swapped out.
    /// Threading: exclusive. Device: host only.
    /// ```
    pub fn kvc_state_checkpoint_release(
        cache: *mut kvc_cache,
        seq: kvc_seq,
        pos: i64,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Computes linear attention over the new tokens, as a step or as chunked prefill: reads and
    /// sets the layer's state, whose shape is \[H, Dk, Dv\].
    ///
    /// ```text
    /// q, k     [>= T, Hk, Dk]; Hk divides H, and head h reads q and k head h / (H / Hk)
    ///   v, out   [>= T, H, Dv]
    ///   decay    float32: ln(decay) <= 0, of the shape that opt.decay says; NULL for NONE
    ///   beta     float32 [>= T, H]; NULL: 1
    ///
    /// Arithmetic is in float32.
    ///
    /// Misuse:    state; and
    ///            KVC_E_SHAPE             A state that is not [H, Dk, Dv].
    ///            KVC_E_INVALID_ARGUMENT  decay is given or missing against opt; an output overlaps.
    ///            KVC_E_OUT_OF_RANGE      opt.state, opt.scale.
    ///            KVC_E_UNSUPPORTED       Flags, unknown opt.decay.
    /// Threading: one call at a time per forward. Device: enqueues.
    /// ```
    pub fn kvc_attn_linear(
        fwd: *mut kvc_forward,
        layer: i32,
        opt: *const kvc_linear_opt,
        q: *const DLTensor,
        k: *const DLTensor,
        v: *const DLTensor,
        decay: *const DLTensor,
        beta: *const DLTensor,
        out: *mut DLTensor,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Computes a causal depthwise convolution over the new tokens, and sets the state.
    ///
    /// ```text
    /// out[t, c] = act(bias[c] + sum_j weight[c, j] x[t - W + 1 + j, c])
    ///
    /// The last inputs are kept as state [C, W-1], newest last. W >= 2 is the kernel width.
    ///
    ///   x, out   [>= T, C]
    ///   weight   float32 [C, W]
    ///   bias     float32 [C], or NULL
    ///
    /// Misuse:    As kvc_attn_linear; the state is [C, W-1].
    /// Threading: one call at a time per forward. Device: enqueues.
    /// ```
    pub fn kvc_state_conv(
        fwd: *mut kvc_forward,
        layer: i32,
        state: i32,
        x: *const DLTensor,
        weight: *const DLTensor,
        bias: *const DLTensor,
        activation: kvc_activation,
        out: *mut DLTensor,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Writes k and v to slots of a pool.
    ///
    /// ```text
    /// slots   int64 [T] = page * page_size + offset; < 0: skip. T = length of slots
    ///   k       [>= T, heads, k_dim]
    ///   v       [>= T, heads, v_dim]; NULL where pool->v is
    ///
    /// Misuse:    operator; and
    ///            KVC_E_UNSUPPORTED  opt->rope with layout MLA: rotate with kvc_op_rotate.
    /// Threading: any, not two that write the same slots.
    /// Device:    the CPU, complete on return; CUDA, enqueues on opt->stream.
    /// ```
    pub fn kvc_op_append(
        pool: *const kvc_op_pool,
        opt: *const kvc_op_opt,
        slots: *const DLTensor,
        k: *const DLTensor,
        v: *const DLTensor,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Attends over the pages of a pool of layout HND or NHD.
    ///
    /// ```text
    /// q     [T, num_q_heads, k_dim]
    ///   out   [T, num_q_heads, v_dim]
    ///   lse   float32 [T, num_q_heads]
    ///
    /// On a CUDA device T is dimension 0 of q where qo_indptr is given, and rows behind the last cut
    /// stay as they are. That holds for the two functions below too.
    ///
    /// Misuse:    operator; and
    ///            KVC_E_UNSUPPORTED  KVC_ATTN_BATCH_INVARIANT on a CUDA device, here and in the two
    ///                               below.
    /// Threading: any.
    /// Device:    the CPU, complete on return; CUDA, enqueues on opt->stream.
    /// ```
    pub fn kvc_op_attention_paged(
        pool: *const kvc_op_pool,
        table: *const kvc_op_table,
        opt: *const kvc_op_opt,
        q: *const DLTensor,
        out: *mut DLTensor,
        lse: *mut DLTensor,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Attends over packed keys and values.
    ///
    /// ```text
    /// q           [T, num_q_heads, k_dim]
    ///   k           [K, num_kv_heads, k_dim]
    ///   v           [K, num_kv_heads, v_dim]
    ///   out         [T, num_q_heads, v_dim]
    ///   lse         float32 [T, num_q_heads]
    ///   qo_indptr   int32 [B+1]: cuts q into sequences
    ///   kv_indptr   int32 [B+1]: cuts k and v; NULL: qo_indptr
    ///
    /// Misuse:    operator; and as kvc_op_attention_paged.
    /// Threading: any.
    /// Device:    the CPU, complete on return; CUDA, enqueues on opt->stream.
    /// ```
    pub fn kvc_op_attention_ragged(
        qo_indptr: *const DLTensor,
        kv_indptr: *const DLTensor,
        opt: *const kvc_op_opt,
        q: *const DLTensor,
        k: *const DLTensor,
        v: *const DLTensor,
        out: *mut DLTensor,
        lse: *mut DLTensor,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Attends over a pool of layout MLA, in the absorbed form.
    ///
    /// ```text
    /// q     [T, heads, latent_rank + latent_rope_dim]
    ///   out   [T, heads, latent_rank]
    ///   lse   float32 [T, heads]
    ///
    /// opt->attn->scale must be given.
    ///
    /// Misuse:    operator; and as kvc_op_attention_paged, and
    ///            KVC_E_OUT_OF_RANGE  latent_rank is not in 1..elements of a row.
    /// Threading: any.
    /// Device:    the CPU, complete on return; CUDA, enqueues on opt->stream.
    /// ```
    pub fn kvc_op_mla_paged(
        pool: *const kvc_op_pool,
        table: *const kvc_op_table,
        latent_rank: i32,
        opt: *const kvc_op_opt,
        q: *const DLTensor,
        out: *mut DLTensor,
        lse: *mut DLTensor,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Does what kvc_attn_merge does without a forward.
    ///
    /// ```text
    /// T = dimension 0 of out.
    ///
    ///   out, other_out   [T, H, D], any activation types
    ///   lse, other_lse   float32 [T, H]
    ///
    /// Misuse:    operator.
    /// Threading: any.
    /// Device:    the CPU, complete on return; CUDA, enqueues on opt->stream.
    /// ```
    pub fn kvc_op_merge(
        opt: *const kvc_op_opt,
        out: *mut DLTensor,
        lse: *mut DLTensor,
        other_out: *const DLTensor,
        other_lse: *const DLTensor,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Copies all keys of the table's sequences, packed in their order, quantised ones as their
    /// values.
    ///
    /// ```text
    /// k_out   [>= sum of seq_lens, heads, k_dim]
    ///   v_out   [>= sum of seq_lens, heads, v_dim]
    ///
    /// Either output may be NULL, not both. Where pool->v is NULL, v_out is NULL. table->qo_indptr is
    /// not used: NULL.
    ///
    /// Misuse:    operator.
    /// Threading: any.
    /// Device:    the CPU only, complete on return.
    /// ```
    pub fn kvc_op_gather(
        pool: *const kvc_op_pool,
        table: *const kvc_op_table,
        opt: *const kvc_op_opt,
        k_out: *mut DLTensor,
        v_out: *mut DLTensor,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Copies pages inside a pool.
    ///
    /// ```text
    /// pairs   int64 [n, 2] of (from, to): distinct destinations, none of which is a source (on CUDA
    ///           not checked)
    ///
    /// Misuse:    operator.
    /// Threading: any, not on the same pages.
    /// Device:    the CPU, complete on return; CUDA, enqueues on opt->stream.
    /// ```
    pub fn kvc_op_copy_pages(
        pool: *const kvc_op_pool,
        opt: *const kvc_op_opt,
        pairs: *const DLTensor,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Rotates x by opt->rope at opt->positions.
    ///
    /// ```text
    /// x, out   [T, heads, dim]; out may be x: same address, strides and type
    ///
    /// Misuse:    operator; and
    ///            KVC_E_INVALID_ARGUMENT  opt->rope is NULL or of mode NONE.
    /// Threading: any.
    /// Device:    the CPU, complete on return; CUDA, enqueues on opt->stream.
    /// ```
    pub fn kvc_op_rotate(
        opt: *const kvc_op_opt,
        x: *const DLTensor,
        out: *mut DLTensor,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Stores rows as a cache with this kvc_layer.quant stores them: the same scales and elements,
    /// bit for bit.
    ///
    /// ```text
    /// x        [T, heads, dim], an activation type. T = dimension 0 of x
    ///   out      [>= T, heads, dim], int8, float8_e4m3fn or float8_e5m2
    ///   scales   float32. PER_TOKEN_HEAD: [>= T, heads], written. PER_TENSOR: [1], read; finite, > 0
    ///
    /// *out_saturated (may be NULL) counts the elements that were clipped: with PER_TENSOR, x / scale
    /// beyond the largest or smallest finite element, infinities among them. NaN is no such element.
    /// PER_TOKEN_HEAD clips none.
    ///
    /// Misuse:    operator; and
    ///            KVC_E_INVALID_ARGUMENT  quant is NONE.
    ///            KVC_E_OUT_OF_RANGE      The scale of PER_TENSOR is not finite, or not > 0.
    ///            KVC_E_UNSUPPORTED       quant is BLOCK16; an out of 4 bits.
    /// Threading: any.
    /// Device:    the CPU only, complete on return.
    /// ```
    pub fn kvc_op_quantize(
        opt: *const kvc_op_opt,
        quant: kvc_quant,
        x: *const DLTensor,
        out: *mut DLTensor,
        scales: *mut DLTensor,
        out_saturated: *mut u64,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Computes out = x \* scale, as kvc_kv_gather reads quantised rows.
    ///
    /// ```text
    /// x        [T, heads, dim], int8, float8_e4m3fn or float8_e5m2. T = dimension 0 of x
    ///   scales   float32. PER_TOKEN_HEAD: [>= T, heads]. PER_TENSOR: [1]; finite, > 0
    ///   out      [>= T, heads, dim], an activation type
    ///
    /// Misuse:    operator; and as kvc_op_quantize.
    /// Threading: any.
    /// Device:    the CPU only, complete on return.
    /// ```
    pub fn kvc_op_dequantize(
        opt: *const kvc_op_opt,
        quant: kvc_quant,
        x: *const DLTensor,
        scales: *const DLTensor,
        out: *mut DLTensor,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Computes linear attention, as kvc_attn_linear does, over the host program's own states.
    ///
    /// ```text
    /// states      [B, H, Dk, Dv], updated in place
    ///   qo_indptr   int32 [B+1]: cuts the tokens into sequences; NULL: one each
    ///   others      as kvc_attn_linear
    ///
    /// Misuse:    operator; and as kvc_attn_linear.
    /// Threading: any, not on the same states.
    /// Device:    the CPU, complete on return; CUDA, enqueues on opt->stream.
    /// ```
    pub fn kvc_op_linear_step(
        linear: *const kvc_linear_opt,
        opt: *const kvc_op_opt,
        qo_indptr: *const DLTensor,
        states: *mut DLTensor,
        q: *const DLTensor,
        k: *const DLTensor,
        v: *const DLTensor,
        decay: *const DLTensor,
        beta: *const DLTensor,
        out: *mut DLTensor,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Copies the committed tokens \[begin, end) of a sequence, all layers of the slice.
    ///
    /// ```text
    /// k   [layers, end - begin, num_kv_heads, k_dim], or NULL
    ///   v   [layers, end - begin, num_kv_heads, v_dim], or NULL
    ///
    /// When layers differ, the heads and dims of the tensors are the largest ones. These parts are left
    /// as they are: the rest of a smaller layer, layers that are not ATTENTION, and v of K = V layers.
    ///
    /// Expected, Misuse: rows.
    /// Threading: shared. Device: blocks until done.
    /// ```
    pub fn kvc_debug_get_kv(
        cache: *const kvc_cache,
        seq: kvc_seq,
        begin: i64,
        end: i64,
        k: *mut DLTensor,
        v: *mut DLTensor,
        stream: kvc_stream,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Overwrites the committed tokens \[begin, begin + n), n = dimension 1 of k and v, with values
    /// as they are to be stored (not rotated again).
    ///
    /// ```text
    /// Shapes are those of kvc_debug_get_kv.
    ///
    /// Expected, Misuse: rows.
    /// Threading: exclusive. Device: blocks until done.
    /// ```
    pub fn kvc_debug_set_kv(
        cache: *mut kvc_cache,
        seq: kvc_seq,
        begin: i64,
        k: *const DLTensor,
        v: *const DLTensor,
        stream: kvc_stream,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Copies the committed tokens \[begin, end) of a sequence in the MLA layers.
    ///
    /// ```text
    /// latent   [layers, end - begin, latent_rank + latent_rope_dim], all layers of the slice
    ///
    /// Layers that are not MLA are left as they are. When latents differ in size, the last dimension is
    /// the largest.
    ///
    /// Expected, Misuse: rows.
    /// Threading: shared. Device: blocks until done.
    /// ```
    pub fn kvc_debug_get_mla(
        cache: *const kvc_cache,
        seq: kvc_seq,
        begin: i64,
        end: i64,
        latent: *mut DLTensor,
        stream: kvc_stream,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Overwrites the committed tokens \[begin, begin + n) in the MLA layers, n = dimension 1 of
    /// latent, as kvc_debug_set_kv does.
    ///
    /// ```text
    /// The shape is that of kvc_debug_get_mla.
    ///
    /// Expected, Misuse: rows.
    /// Threading: exclusive. Device: blocks until done.
    /// ```
    pub fn kvc_debug_set_mla(
        cache: *mut kvc_cache,
        seq: kvc_seq,
        begin: i64,
        latent: *const DLTensor,
        stream: kvc_stream,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Copies the committed tokens \[begin, end) of a sequence in one layer of any kind that keeps
    /// pages.
    ///
    /// ```text
    /// ATTENTION, CROSS, SHARED           MLA
    ///   k   [n, num_kv_heads, k_dim]           [n, 1, latent_rank + latent_rope_dim]
    ///   v   [n, num_kv_heads, v_dim]           NULL
    ///
    /// CROSS: begin and end count encoder tokens. SHARED: the source's. K = V layers: v is NULL.
    ///
    /// Expected, Misuse: rows; and
    ///            KVC_E_OUT_OF_RANGE      A layer that is not here.
    ///            KVC_E_UNSUPPORTED       A layer without pages.
    ///            KVC_E_INVALID_ARGUMENT  v is set where it has to be NULL.
    /// Threading: shared. Device: blocks until done.
    /// ```
    pub fn kvc_debug_get_layer(
        cache: *const kvc_cache,
        seq: kvc_seq,
        layer: i32,
        begin: i64,
        end: i64,
        k: *mut DLTensor,
        v: *mut DLTensor,
        stream: kvc_stream,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Overwrites the committed tokens \[begin, begin + n) in one layer, n = dimension 0 of k and
    /// v, with values as they are to be stored.
    ///
    /// ```text
    /// Shapes are those of kvc_debug_get_layer.
    ///
    /// Expected, Misuse: rows; and as kvc_debug_get_layer.
    /// Threading: exclusive. Device: blocks until done.
    /// ```
    pub fn kvc_debug_set_layer(
        cache: *mut kvc_cache,
        seq: kvc_seq,
        layer: i32,
        begin: i64,
        k: *const DLTensor,
        v: *const DLTensor,
        stream: kvc_stream,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Copies the state of a sequence at its committed length: out \[shape...\].
    ///
    /// ```text
    /// Misuse:    KVC_E_NOT_FOUND      No such sequence.
    ///            KVC_E_OUT_OF_RANGE   layer, state.
    ///            KVC_E_UNSUPPORTED    No storage; not a STATE layer.
    ///            KVC_E_INVALID_STATE  It is swapped out.
    ///            tensors              out.
    /// Threading: shared. Device: blocks until done.
    /// ```
    pub fn kvc_debug_get_state(
        cache: *const kvc_cache,
        seq: kvc_seq,
        layer: i32,
        state: i32,
        out: *mut DLTensor,
        stream: kvc_stream,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Replaces the state of a sequence at its committed length: value \[shape...\].
    ///
    /// ```text
    /// Earlier checkpoints,
    /// published blocks and other sequences keep theirs.
    ///
    /// Expected:  KVC_E_NO_PAGES  No state slot for it.
    /// Misuse:    KVC_E_BUSY      It is in the open forward.
    ///            Others as kvc_debug_get_state.
    /// Threading: exclusive. Device: blocks until done.
    /// ```
    pub fn kvc_debug_set_state(
        cache: *mut kvc_cache,
        seq: kvc_seq,
        layer: i32,
        state: i32,
        value: *const DLTensor,
        stream: kvc_stream,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Exports the pool memory of one layer, writable and shared.
    ///
    /// ```text
    /// SHARED layers: the source's.
    ///
    /// Elements are those of kvc_layer_info. Quantised layers: types of 4 bits are packed in pairs, and
    /// strides count elements; their scales are in KVC_POOL_BYTES.
    ///
    /// Misuse:    KVC_E_OUT_OF_RANGE      layer.
    ///            KVC_E_UNSUPPORTED       No storage; a layer without pages; V of MLA and K = V layers;
    ///                                    KV of unequal K and V.
    ///            KVC_E_INVALID_ARGUMENT  kind.
    ///            KVC_E_BUSY              A forward or a transfer is open, and K of a sequence waits to
    ///                                    be rotated (kvc_seq_shift).
    ///            KVC_E_INVALID_STATE     Such a sequence is swapped out.
    /// Threading: exclusive. Device: host only.
    /// ```
    pub fn kvc_export_pool(
        cache: *mut kvc_cache,
        layer: i32,
        kind: kvc_pool_kind,
        out: *mut *mut DLManagedTensorVersioned,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Exports the page tables of the open forward's B sequences in one layer group, with the new
    /// tokens (tree nodes included): a read-only snapshot in host memory, whatever the cache's
    /// device.
    ///
    /// ```text
    /// INDPTR, INDICES and PAGE_POSITION list the pages that are kept. BLOCK_TABLE has -1 where a window
    /// has dropped one. A CROSS group counts encoder tokens. `group`: 0..num_groups-1.
    ///
    /// Tables do not only grow. A begin puts a copy in the place of a shared last page. An end puts
    /// pages of the prefix index in the place of equal ones, and drops those behind windows. Calls that
    /// change a sequence and kvc_cache_resize may change any place. So a table is good for its forward
    /// alone.
    ///
    /// Misuse:    KVC_E_OUT_OF_RANGE      group.
    ///            KVC_E_INVALID_ARGUMENT  kind.
    ///            KVC_E_INVALID_STATE     The forward is not open.
    /// Threading: one call at a time per forward. Device: host only.
    /// ```
    pub fn kvc_export_page_table(
        fwd: *mut kvc_forward,
        group: i32,
        kind: kvc_table_kind,
        out: *mut *mut DLManagedTensorVersioned,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Exports the ids of one sequence's kept pages: int32 \[pages\], ascending positions; a
    /// read-only snapshot in host memory.
    ///
    /// ```text
    /// They are the pages of its committed tokens and of the nodes of its uncommitted tree. Pages that
    /// the open forward has reserved are not among them.
    ///
    /// Misuse:    KVC_E_NOT_FOUND      seq.
    ///            KVC_E_OUT_OF_RANGE   group.
    ///            KVC_E_INVALID_STATE  It is swapped out.
    /// Threading: shared. Device: host only.
    /// ```
    pub fn kvc_export_seq_pages(
        cache: *const kvc_cache,
        seq: kvc_seq,
        group: i32,
        out: *mut *mut DLManagedTensorVersioned,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Returns the table for a program that was compiled against `abi_version`: pass
    /// KVC_ABI_VERSION.
    ///
    /// ```text
    /// The table has static storage. NULL: the library cannot serve that version, because the major
    /// version differs or the minor version is newer than the library's.
    ///
    /// Threading: any. Device: host only.
    /// ```
    pub fn kvc_get_api(abi_version: u32) -> *const kvc_api;
}
