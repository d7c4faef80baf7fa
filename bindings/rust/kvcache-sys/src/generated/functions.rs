// Generated from include/kvcache.h by `make abi`. Do not edit.
//! Functions of kvcache.h.

use crate::*;
use core::ffi::{c_char, c_void};

extern "C" {
    /// Version of the loaded library's ABI, major \<\< 16 | minor.
    ///
    /// ```text
    /// Threading: any. Device: host only.
    /// ```
    pub fn kvc_abi_version() -> u32;
    /// Version and build, for example "0.1.0 cpu".
    ///
    /// ```text
    /// Static storage.
    /// Threading: any. Device: host only.
    /// ```
    pub fn kvc_version_string() -> *const c_char;
    /// Name of a status, for example "KVC_E_NO_PAGES"; "KVC_E_UNKNOWN" for a value this library
    /// does not know.
    ///
    /// ```text
    /// Never NULL.
    /// Threading: any. Device: host only.
    /// ```
    pub fn kvc_status_name(status: kvc_status) -> *const c_char;
    /// 1 when the build has a feature, 0 when it has not or does not know the name.
    ///
    /// ```text
    /// Names: "cpu", "cuda", "f32", "f16", "bf16",
    /// "rope.half", "rope.interleaved", "rope.on_read", "rope.llama3", "rope.yarn", "rope.longrope", "rope.mrope", "softcap", "sink_logits",
    /// "alibi", "bias", "spans", "window", "window.sink", "chunk", "tree", "mla", "cross", "shared", "v_is_k", "state", "linear",
    /// "cascade", "shift", "ops", "storage.borrowed", "storage.none", "layout.page_first", "resize", "export", "plan.quant", "plan.hf_json", "prefix",
    /// "prefix.tail", "prefix.quota", "prefix.host", "swap", "events".
    /// `name`: borrowed for the call; NULL gives 0.
    /// Threading: any. Device: host only.
    /// ```
    pub fn kvc_has_feature(name: *const c_char) -> i32;
    /// Says where modules lie: shared libraries of this project that are loaded when they are first
    /// needed.
    ///
    /// ```text
    /// There is one, the CUDA back end libkvcache_cuda.so. Without this call, or after NULL,
    /// modules lie in the directory of the file that holds the library's code: libkvcache.so, or the
    /// program that libkvcache.a is linked into. The dynamic linker never searches for a module, so
    /// LD_LIBRARY_PATH, RUNPATH and its cache have no part in the choice. What a module depends on itself
    /// (libc, libstdc++) the linker finds as usual.
    /// A failed search is remembered: until the next successful kvc_module_path_set every call that needs
    /// the module fails with the same message, which names the file, and nothing is looked for again. A
    /// loaded module stays for the life of the process.
    /// `path`: absolute path of a directory, copied; not looked at before a module is needed.
    /// KVC_E_INVALID_ARGUMENT: path is not absolute, or holds a '$', which the dynamic linker would
    /// replace. KVC_E_INVALID_STATE: a module has been loaded, and path is not the one in force; the message
    /// names the module's file.
    /// Threading: any. Device: host only.
    /// ```
    pub fn kvc_module_path_set(path: *const c_char, err: *mut kvc_error) -> kvc_status;
    /// What the library can do on a device.
    ///
    /// ```text
    /// A device without a back end in this build, or without a
    /// driver, is not an error: backend_present is 0. kvc_has_feature("cuda") says whether the CUDA back
    /// end was found, and loads it for that.
    /// KVC_E_INVALID_ARGUMENT: out NULL or struct_size too small. KVC_E_OUT_OF_RANGE: device id that does not exist.
    /// Threading: any. Device: host only.
    /// ```
    pub fn kvc_device_query(
        device: DLDevice,
        out: *mut kvc_device_caps,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Send messages of at least `min_level` to `fn`; NULL: silence, the initial state.
    ///
    /// ```text
    /// `user` is borrowed until the logger is replaced.
    /// KVC_E_INVALID_ARGUMENT: unknown level.
    /// Threading: any. Device: host only.
    /// ```
    pub fn kvc_set_logger(
        fn_: kvc_log_fn,
        user: *mut c_void,
        min_level: kvc_log_level,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Zero `struct_size` bytes and set the size field.
    ///
    /// ```text
    /// Pass sizeof(kvc_config).
    /// KVC_E_INVALID_ARGUMENT: config NULL, or struct_size cannot hold the size field.
    /// Threading: any. Device: host only.
    /// ```
    pub fn kvc_config_init(config: *mut kvc_config, struct_size: usize) -> kvc_status;
    /// Check a configuration and plan its memory.
    ///
    /// ```text
    /// `config` and all it points at are copied, except pool tensors' data and the `user`
    /// pointers. `*out`: owned by caller, see kvc_plan_destroy; a cache keeps what it needs of it.
    /// KVC_E_INVALID_ARGUMENT: contradictory or missing fields; a budget that holds no page (detail = bytes of one page).
    /// KVC_E_NEVER_FITS: the pages can't hold one sequence of max_seq_len (detail = the longest that fits).
    /// KVC_E_OUT_OF_RANGE: a field beyond its limit, or sizes that overflow. KVC_E_UNSUPPORTED: names field and value.
    /// KVC_E_SHAPE, KVC_E_DEVICE_MISMATCH: pool tensors. KVC_E_VERSION: unknown struct tail. KVC_E_NO_MEMORY.
    /// Threading: any. Device: host only.
    /// ```
    pub fn kvc_plan_create(
        config: *const kvc_config,
        out: *mut *mut kvc_plan,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// NULL is accepted.
    ///
    /// ```text
    /// Caches made from the plan stay valid.
    /// Threading: any, once. Device: host only.
    /// ```
    pub fn kvc_plan_destroy(plan: *mut kvc_plan);
    /// KVC_E_INVALID_ARGUMENT: NULL, struct_size too small.
    ///
    /// ```text
    /// Threading: any. Device: host only.
    /// ```
    pub fn kvc_plan_info_get(
        plan: *const kvc_plan,
        out: *mut kvc_plan_info,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// KVC_E_OUT_OF_RANGE: group not in 0..num_groups-1.
    ///
    /// ```text
    /// Threading: any. Device: host only.
    /// ```
    pub fn kvc_plan_group_get(
        plan: *const kvc_plan,
        group: i32,
        out: *mut kvc_group_info,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// A layer as planned, defaults filled in.
    ///
    /// ```text
    /// `layer`: global id inside the slice.
    /// KVC_E_OUT_OF_RANGE: no such layer here.
    /// Threading: any. Device: host only.
    /// ```
    pub fn kvc_plan_layer_get(
        plan: *const kvc_plan,
        layer: i32,
        out: *mut kvc_layer_info,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Pages that a byte budget holds (may be 0).
    ///
    /// ```text
    /// Threading: any. Device: host only.
    /// ```
    pub fn kvc_plan_pages_for(
        plan: *const kvc_plan,
        byte_budget: u64,
        out_pages: *mut i64,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Longest single request, in tokens, that a byte budget holds (may be 0).
    ///
    /// ```text
    /// Threading: any. Device: host only.
    /// ```
    pub fn kvc_plan_max_tokens(
        plan: *const kvc_plan,
        byte_budget: u64,
        out_tokens: *mut i64,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Pages that one request of `num_tokens` >= 0 tokens needs at most while it is computed, when
    /// it shares nothing: the sum over groups, and two state slots (before and after a forward)
    /// where they come out of the pages.
    ///
    /// ```text
    /// A window W needs at most ceil((W - 1 + m) / page_tokens) + 1 pages, m = forwards_in_flight * max_tokens_per_forward (vLLM's formula).
    /// A chunk C likewise, less the page over the edge where page_tokens divide it.
    /// KVC_E_OUT_OF_RANGE: negative.
    /// Threading: any. Device: host only.
    /// ```
    pub fn kvc_plan_request_pages(
        plan: *const kvc_plan,
        num_tokens: i64,
        out_pages: *mut i64,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// The plan as a table for people; two-call string, see "Arrays out" above.
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
    /// The plan as JSON: page_size, num_pages, page_bytes, bytes_per_token, pool_bytes, max_tokens,
    /// max_seq_len, pool_layout, storage, concurrency, waste, groups\[\], layers\[\].
    ///
    /// ```text
    /// Two-call string. Field names may be added.
    /// Threading: any. Device: host only.
    /// ```
    pub fn kvc_plan_to_json(
        plan: *const kvc_plan,
        buf: *mut c_char,
        len: *mut usize,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Pages that every rank of one model has: the least of the plans' num_pages.
    ///
    /// ```text
    /// Tensor and pipeline parallel ranks run one scheduler, so page
    /// ids must mean the same everywhere: give each rank's plan this number.
    /// KVC_E_INVALID_ARGUMENT: n = 0, a NULL plan, plans whose groups differ in number, page_tokens, window, chunk or kind (the message names both).
    /// Threading: any. Device: host only.
    /// ```
    pub fn kvc_plan_min_pages(
        plans: *const *const kvc_plan,
        n: usize,
        out_pages: *mut i64,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Read a Hugging Face `config.json` (NUL-terminated): the layers of a model and, in config,
    /// num_layers, layers and max_seq_len (the model's longest; encoder-decoders with a fixed
    /// encoder: max_cross_len too); every other field is left as it is.
    ///
    /// ```text
    /// A layer of the model that has two parts (self
    /// and cross attention; attention and state) becomes two entries, so ids count entries. Give config->struct_size and, when layers is not NULL, layers[0].struct_size.
    /// `*n`: capacity of layers in elements on entry, elements needed on return: more than num_layers, because the elements behind the layers hold
    /// the rotations, state shapes and factors that they point at. Keep the array until kvc_plan_create has copied it. NULL: only the count.
    /// Storage is of the model's torch_dtype (bfloat16 where it has none). Rotations are read, and set to KVC_ROPE_ON_APPEND.
    /// Families (`kvcache plan --families` lists the names): Llama 2 to 4 and 3.2 Vision, Mistral, Ministral,
    /// Mixtral, Qwen 2 to 3.5, Next and VL, Gemma 1 to 4 and 3n, GPT-OSS, DeepSeek V2 and V3, Kimi-K2 and
    /// Kimi-Linear, Phi 1 to 4, GLM-4, ChatGLM, Cohere 1 and 2, OLMo 1 to 3, Granite, StableLM, StarCoder 1 and 2,
    /// MiMo-V2, BLOOM, Falcon, MPT, GPT-2, GPT-J, GPT-NeoX, OPT, Jamba, Mamba 1 and 2, Falcon-Mamba, Falcon-H1,
    /// Zamba 2, Bamba, Nemotron-H, LFM2, T5, BART, Whisper.
    /// KVC_E_INVALID_ARGUMENT: not JSON (detail = byte), a missing field or one of the wrong type (the message names it). KVC_E_OUT_OF_RANGE: a
    /// number beyond reason. KVC_E_UNSUPPORTED: an unknown model_type, or a feature that the library has not (named). KVC_E_BUFFER_TOO_SMALL.
    /// Threading: any. Device: host only.
    /// ```
    pub fn kvc_config_from_hf_json(
        json: *const c_char,
        config: *mut kvc_config,
        layers: *mut kvc_layer,
        n: *mut usize,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Make an empty cache.
    ///
    /// ```text
    /// `plan`: borrowed for the call. `*out`: owned by caller.
    /// Owned memory is reserved, not touched: it costs physical memory as pages are written.
    /// KVC_E_NO_MEMORY: the pool or the tables could not be allocated. KVC_E_INVALID_ARGUMENT: a plan without pages, a bad executor or
    /// allocator. KVC_E_UNSUPPORTED: config.cpu_isa is not available on this machine. KVC_E_BUSY: another cache has the
    /// plan's borrowed tensors.
    /// Threading: any. Device: host only.
    /// ```
    pub fn kvc_cache_create(
        plan: *const kvc_plan,
        out: *mut *mut kvc_cache,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// NULL is accepted.
    ///
    /// ```text
    /// An open forward is dropped. Exported tensors stay valid until their deleters run.
    /// Threading: exclusive. Device: host only.
    /// ```
    pub fn kvc_cache_destroy(cache: *mut kvc_cache);
    /// Forget all sequences, the prefix index and what is on the host; page data is not touched.
    ///
    /// ```text
    /// KVC_E_BUSY: a forward is open.
    /// Threading: exclusive. Device: host only.
    /// ```
    pub fn kvc_cache_clear(cache: *mut kvc_cache, err: *mut kvc_error) -> kvc_status;
    /// Grow the pool, or shrink it when the pages above are free.
    ///
    /// ```text
    /// Page ids and contents stay. A tensor exported before keeps its shape; after a
    /// shrink the dropped pages in it may read zero.
    /// KVC_E_BUSY: a forward is open; a page above is in use (detail = its id); or the pool has to move while exports of it live.
    /// KVC_E_OUT_OF_RANGE: num_pages < 1 or too large. KVC_E_UNSUPPORTED: borrowed storage. KVC_E_NO_MEMORY.
    /// KVC_E_NEVER_FITS: the configuration's max_seq_len would no longer fit (detail = the longest that fits).
    /// Threading: exclusive. Device: host only.
    /// ```
    pub fn kvc_cache_resize(
        cache: *mut kvc_cache,
        num_pages: i64,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Threading: shared. Device: host only.
    pub fn kvc_cache_stats_get(
        cache: *const kvc_cache,
        out: *mut kvc_stats,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Pages not held by any sequence, forward or pin (those that only the prefix index holds are
    /// free); -1 when cache is NULL.
    ///
    /// ```text
    /// Threading: shared. Device: host only.
    /// ```
    pub fn kvc_cache_free_pages(cache: *const kvc_cache) -> i64;
    /// Tokens over all sequences, each sequence counting its shared prefix; -1 when cache is NULL.
    ///
    /// ```text
    /// Threading: shared. Device: host only.
    /// ```
    pub fn kvc_cache_total_length(cache: *const kvc_cache) -> i64;
    /// 1: no sequence exists and every page is free.
    ///
    /// ```text
    /// 0 otherwise, also when cache is NULL.
    /// Threading: shared. Device: host only.
    /// ```
    pub fn kvc_cache_is_empty(cache: *const kvc_cache) -> i32;
    /// Recount everything and compare: reference counts, free list, lengths, tables.
    ///
    /// ```text
    /// O(pages).
    /// KVC_E_CORRUPT: the message names the page or the sequence.
    /// Threading: shared. Device: host only.
    /// ```
    pub fn kvc_cache_check(cache: *const kvc_cache, err: *mut kvc_error) -> kvc_status;
    /// Add an empty sequence.
    ///
    /// ```text
    /// Never fails for capacity.
    /// KVC_E_INVALID_ARGUMENT: seq < 0. KVC_E_ALREADY_EXISTS. KVC_E_NO_MEMORY.
    /// Threading: exclusive. Device: host only.
    /// ```
    pub fn kvc_seq_add(cache: *mut kvc_cache, seq: kvc_seq, err: *mut kvc_error) -> kvc_status;
    /// Remove a sequence; any order is legal, shared pages live on while another sequence uses
    /// them.
    ///
    /// ```text
    /// KVC_E_NOT_FOUND. KVC_E_BUSY: in the open forward.
    /// Threading: exclusive. Device: host only.
    /// ```
    pub fn kvc_seq_remove(cache: *mut kvc_cache, seq: kvc_seq, err: *mut kvc_error) -> kvc_status;
    /// Add `child` with the first `pos` tokens of `parent` (-1: all).
    ///
    /// ```text
    /// Nothing is copied: pages are shared; a partial last page is copied by whoever
    /// appends to it first (kvc_seq_can_append counts that page). The child inherits the window, the encoder tokens and the checkpoints up to pos.
    /// KVC_E_NOT_FOUND: parent. KVC_E_ALREADY_EXISTS, KVC_E_INVALID_ARGUMENT: child. KVC_E_BUSY. KVC_E_NO_MEMORY.
    /// KVC_E_OUT_OF_RANGE: pos beyond the length, or needing tokens that a window has dropped, or a state without a checkpoint there
    /// (detail = the nearest position that is possible). KVC_E_INVALID_STATE: an uncommitted token tree.
    /// Threading: exclusive. Device: host only.
    /// ```
    pub fn kvc_seq_fork(
        cache: *mut kvc_cache,
        parent: kvc_seq,
        child: kvc_seq,
        pos: i64,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Drop the last `n` tokens, 0 \<= n \<= length, also past a fork point; siblings keep theirs.
    ///
    /// ```text
    /// KVC_E_NOT_FOUND. KVC_E_BUSY. KVC_E_INVALID_STATE: an uncommitted token tree.
    /// KVC_E_OUT_OF_RANGE: n, or the rest would need tokens that a window has dropped, or a state without a checkpoint there
    /// (detail = the nearest position that is possible).
    /// Threading: exclusive. Device: host only.
    /// ```
    pub fn kvc_seq_pop(
        cache: *mut kvc_cache,
        seq: kvc_seq,
        n: i64,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Drop tokens \[begin, end) of a sequence and move the later ones by `delta` positions: begin
    /// \- end closes the gap (context shift).
    ///
    /// ```text
    /// With
    /// begin = end the positions of the tokens from begin on move and nothing is dropped. K that is stored rotated is re-rotated; shared pages are
    /// made private first. Tokens appended later continue after the last position.
    /// KVC_E_NOT_FOUND. KVC_E_BUSY. KVC_E_INVALID_STATE: an uncommitted token tree. KVC_E_NO_PAGES: for private copies (detail).
    /// KVC_E_OUT_OF_RANGE: not 0 <= begin <= end <= length; positions would become negative, stop ascending, or exceed int32; a window has
    /// dropped tokens of the sequence. KVC_E_UNSUPPORTED: the cache has STATE layers; positions that would leave a gap (delta other than begin - end)
    /// on a sequence or layer with a window or chunk; a LONGROPE layer that rotates ON_APPEND (its K does not say by which factors).
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
    /// Let the sequence see, in every ATTENTION and MLA layer, only its first `sink` tokens and the
    /// newest: a query at position p sees keys k \< sink or k > p - (window - sink), at most
    /// `window` keys, itself included (StreamingLLM, arXiv:2309.17453).
    ///
    /// ```text
    /// Pages that no later
    /// query sees are freed. With ON_READ rope, sinks keep the distance they have at position window - 1. May be called again when the tokens are still
    /// there. Layers with a window of their own see what both allow.
    /// KVC_E_NOT_FOUND. KVC_E_BUSY. KVC_E_INVALID_STATE: an uncommitted token tree. KVC_E_INVALID_ARGUMENT: window < 1, sink < 0,
    /// sink >= window. KVC_E_OUT_OF_RANGE: needs tokens that are dropped. KVC_E_UNSUPPORTED: no ATTENTION or MLA layer here; a layer with chunk; with
    /// sinks, a layer whose own window is larger than window - sink; positions that kvc_seq_shift has moved apart.
    /// Threading: exclusive. Device: host only.
    /// ```
    pub fn kvc_seq_set_window(
        cache: *mut kvc_cache,
        seq: kvc_seq,
        window: i64,
        sink: i64,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Committed tokens of a sequence; those of an open forward count from kvc_forward_end on.
    ///
    /// ```text
    /// KVC_E_NOT_FOUND.
    /// Threading: shared. Device: host only.
    /// ```
    pub fn kvc_seq_length(
        cache: *const kvc_cache,
        seq: kvc_seq,
        out_length: *mut i64,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// KVC_E_NOT_FOUND.
    ///
    /// ```text
    /// O(pages of the sequence).
    /// Threading: shared. Device: host only.
    /// ```
    pub fn kvc_seq_info_get(
        cache: *const kvc_cache,
        seq: kvc_seq,
        out: *mut kvc_seq_info,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// All sequence ids, ascending; two-call array.
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
    /// Would kvc_forward_begin with these `n` sequences and append lengths find its pages? KVC_OK
    /// and \*out_missing_pages = 0: yes; > 0: that many pages (and state slots) are missing now.
    ///
    /// ```text
    /// Counts copy-on-write pages. A sequence with an uncommitted tree is taken to be
    /// extended as a tree. Arrays borrowed for the call.
    /// KVC_E_NOT_FOUND, KVC_E_INVALID_ARGUMENT (n = 0, duplicate ids, lengths < 1), KVC_E_OUT_OF_RANGE (limits of the configuration),
    /// KVC_E_NEVER_FITS: as begin. KVC_E_BUSY: a sequence of the open forward.
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
    /// Could the sequence be forked at, popped back to, or shifted at position `pos` (-1: its end)?
    /// \*out_nearest is the nearest position where it could (ties: the smaller): `pos` itself when
    /// yes; -1 when there is none.
    ///
    /// ```text
    /// KVC_E_NOT_FOUND. KVC_E_UNSUPPORTED: unknown op. KVC_E_OUT_OF_RANGE: pos < -1. KVC_E_BUSY: in the open forward. KVC_E_INVALID_STATE: an
    /// uncommitted token tree.
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
    /// Open a step: check everything, reserve pages, make private what the new tokens share.
    ///
    /// ```text
    /// Prefill, chunked prefill, decode and trees mix freely.
    /// `*out`: valid until kvc_forward_end, kvc_forward_abort or kvc_cache_destroy. The handle is a number that is
    /// never used again and never dereferenced: every later call with it answers KVC_E_INVALID_STATE, for ever.
    /// KVC_E_BUSY: a forward is open. KVC_E_NOT_FOUND: sequence. KVC_E_INVALID_ARGUMENT: empty batch, duplicate id, a length < 1, a tree parent
    /// that is not below its node. KVC_E_OUT_OF_RANGE: more sequences, tokens, tree nodes or encoder tokens than allowed.
    /// KVC_E_INVALID_STATE: a plain append to an uncommitted tree; encoder tokens written twice.
    /// KVC_E_NO_PAGES: full now (pages, or state slots, the message says which), detail = missing. KVC_E_NEVER_FITS: one sequence alone would
    /// exceed the pool or max_seq_len. KVC_E_UNSUPPORTED: trees in a cache with STATE layers, or (with ON_READ rope) of a sequence with fewer
    /// committed tokens than sinks; positions with an ON_READ layer; encoder tokens
    /// without a CROSS layer; KVC_FORWARD_REPLAY on the CPU, or with trees, positions, encoder tokens or what else a graph does not take.
    /// KVC_E_INVALID_STATE: KVC_FORWARD_REPLAY of a shape that was not captured, or beyond what its graph serves, or addresses have changed
    /// since; buffers that would have to grow during a capture; 32 captured steps have ended and are not launched; the legacy default stream
    /// while a blocking stream is captured.
    /// KVC_E_SHAPE, KVC_E_DTYPE, KVC_E_DEVICE_MISMATCH: positions. KVC_E_VERSION, KVC_E_NO_MEMORY, KVC_E_DEVICE.
    /// Threading: exclusive. Device: enqueues.
    /// ```
    pub fn kvc_forward_begin(
        cache: *mut kvc_cache,
        desc: *const kvc_forward_desc,
        out: *mut *mut kvc_forward,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// New tokens of the whole batch (T); -1 when fwd is NULL or no longer open.
    ///
    /// ```text
    /// Threading: shared. Device: host only.
    /// ```
    pub fn kvc_forward_num_tokens(fwd: *const kvc_forward) -> i64;
    /// Position of each new token, as RoPE takes it: `out` int32 \[>= T\], or \[S, >= T\] for S
    /// given position rows (S = 1 otherwise).
    ///
    /// ```text
    /// Tree nodes: the
    /// committed length plus their depth. Caller-given positions come back, row 0 when out has one dimension.
    /// KVC_E_INVALID_STATE: not open. KVC_E_SHAPE, KVC_E_DTYPE, KVC_E_DEVICE_MISMATCH.
    /// Threading: shared. Device: enqueues.
    /// ```
    pub fn kvc_forward_positions(
        fwd: *mut kvc_forward,
        out: *mut DLTensor,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Make the new tokens part of their sequences.
    ///
    /// ```text
    /// The handle is dead afterwards. Where the library alone writes
    /// the pool (storage OWNED, and kvc_export_pool was never called), every layer must have got its K and V in
    /// this forward, by kvc_attn, kvc_attn_fused_qkv, kvc_kv_append or kvc_mla_append:
    ///   ATTENTION, MLA   always
    ///   CROSS            in a forward that announced encoder tokens (kvc_attn_cross)
    ///   STATE            never: a state that is not set is carried on
    ///   SHARED, NONE     never: they have no rows of their own
    /// A forward that leaves a layer out on purpose sets KVC_FORWARD_PARTIAL. What kvc_debug_set_* writes does not
    /// count. A replayed forward has got what the captured one got. Hosts that can write pages themselves (storage
    /// NONE or BORROWED, an exported pool) are not asked: they write every layer before end, or set the flag.
    /// KVC_E_INVALID_STATE: not open; layers got no K and V (the message names them, detail = the first; the
    /// forward stays open: append to them, or abort); it was captured, and the capture is over; a capture began on
    /// its stream after it, or its stream is the legacy default one beside a blocking one's (it stays open).
    /// Threading: exclusive. Device: enqueues.
    /// ```
    pub fn kvc_forward_end(fwd: *mut kvc_forward, err: *mut kvc_error) -> kvc_status;
    /// Undo the begin: lengths, pages, tables, trees, windows and states as before; whatever was
    /// written to the new slots is forgotten.
    ///
    /// ```text
    /// NULL is
    /// accepted.
    /// KVC_E_INVALID_STATE: not open; a capture that it is no part of has begun on its stream (it stays open), as in kvc_forward_end.
    /// Threading: exclusive. Device: enqueues.
    /// ```
    pub fn kvc_forward_abort(fwd: *mut kvc_forward, err: *mut kvc_error) -> kvc_status;
    /// Accept a path of each sequence's token tree: root -> leaves\[i\] becomes committed tokens,
    /// moved together in every layer; all other nodes are dropped.
    ///
    /// ```text
    /// Leaf -1 keeps nothing. Any subset of the sequences with trees, any order.
    /// KVC_E_NOT_FOUND. KVC_E_INVALID_ARGUMENT: n = 0, NULL arrays, duplicate ids. KVC_E_INVALID_STATE: a sequence without an uncommitted tree.
    /// KVC_E_OUT_OF_RANGE: leaf < -1 or no such node. KVC_E_BUSY: in the open forward. KVC_E_NO_MEMORY.
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
    /// Append k and v (when given), then attend: new token i of a sequence sees every token up to
    /// and including itself, tree nodes their ancestors, all within the windows of layer and
    /// sequence.
    ///
    /// ```text
    /// MLA layers (absorbed form): q [>= T, num_q_heads, rank + rope dim], k NULL or the latents [>= T, 1, rank + rope dim], v NULL, out
    /// [>= T, num_q_heads, rank]; scale must be given. K = V layers: v NULL. SHARED layers: k and v NULL, the source layer was appended before.
    /// q [>= T, num_q_heads, k_dim], k [>= T, num_kv_heads, k_dim], v [>= T, num_kv_heads, v_dim], out [>= T, num_q_heads, v_dim],
    /// lse float32 [>= T, num_q_heads], natural logarithm, real keys only (sink logits do not count). A row that sees no key: out 0, lse -inf.
    /// k and v both NULL: the slots of this forward were filled before by kvc_kv_append (KVC_E_INVALID_STATE when not, unless the host can
    /// write the pool itself: borrowed or exported).
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
    /// kvc_attn on one packed tensor qkv \[>= T, num_q_heads + 2\*num_kv_heads, k_dim\]: q heads,
    /// then k heads, then v heads.
    ///
    /// ```text
    /// KVC_E_UNSUPPORTED: k_dim differs from v_dim.
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
    /// Attention among the new tokens only: causal inside each sequence; nothing is appended and no
    /// page is read.
    ///
    /// ```text
    /// k and v are rounded to the
    /// layer's storage type and rotated as an append would do, so that merging with kvc_attn_cached equals kvc_attn.
    /// MLA layers (ragged form): q, k [>= T, num_q_heads, k_dim], v [>= T, num_q_heads, v_dim], out [>= T, num_q_heads, v_dim]. For the whole prompt
    /// merge with kvc_attn_cached, whose latent output the caller has projected to v_dim.
    /// KVC_E_UNSUPPORTED: a token tree of several forwards.
    /// Sink logits enter the denominator of this part alone; to merge parts of a model with sink logits, leave them out of both and multiply the
    /// merged output by 1 / (1 + exp(sink_logits[h] - lse)).
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
    /// The new queries over the tokens that were cached before this forward: all of them that the
    /// windows show.
    ///
    /// ```text
    /// Nothing is appended. For token trees:
    /// over the committed tokens.
    /// A sequence that was empty: out 0, lse -inf.
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
    /// Merge two partial attentions over disjoint keys, in place into (out, lse): weights exp(lse)
    /// (Dao et al., FlashDecoding).
    ///
    /// ```text
    /// out, other_out [>= T, H, D], any activation types; lse, other_lse float32 [>= T, H]. A part with lse -inf does not count.
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
    /// Write k \[>= T, num_kv_heads, k_dim\] and v \[>= T, num_kv_heads, v_dim\] into the slots of
    /// this forward: rotated when the layer's rope mode is ON_APPEND, rounded to nearest even to
    /// the storage types.
    ///
    /// ```text
    /// Threading: one call at a time per forward. Device: enqueues.
    /// ```
    pub fn kvc_kv_append(
        fwd: *mut kvc_forward,
        layer: i32,
        k: *const DLTensor,
        v: *const DLTensor,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Write latents \[>= T, latent_rank + latent_rope_dim\] (or \[>= T, 1, ...\]) into the slots
    /// of this forward of an MLA layer: the last latent_rope_dim elements rotated when the layer's
    /// rope mode is ON_APPEND.
    ///
    /// ```text
    /// Threading: one call at a time per forward. Device: enqueues.
    /// ```
    pub fn kvc_mla_append(
        fwd: *mut kvc_forward,
        layer: i32,
        latent: *const DLTensor,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Encoder-decoder attention: every new token sees all encoder tokens of its sequence.
    ///
    /// ```text
    /// k [>= C, num_kv_heads, k_dim] and v [>= C, num_kv_heads,
    /// v_dim], C = sum of kvc_forward_desc.cross_lengths, packed in the order of the batch: given in the forward that announced them, NULL
    /// otherwise. No rotation. A sequence without encoder tokens: out 0, lse -inf. opt.window and opt.spans are refused.
    /// KVC_E_INVALID_STATE: announced but not given, or not announced.
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
    /// Attention that reads another layer's K and V, which that layer has appended in this forward:
    /// what kvc_attn does on a SHARED layer, for a layer that is not in the plan.
    ///
    /// ```text
    /// q [>= T, H, k_dim of the source], H any multiple of the source's kv heads; rotated by the source's rope.
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
    /// Copy a sequence's K and V of one layer, as stored, into k_out \[>= n, num_kv_heads, k_dim\]
    /// and v_out \[>= n, num_kv_heads, v_dim\], n = its length including this forward's new tokens
    /// and its tree nodes, which come in the order of their slots.
    ///
    /// ```text
    /// Either output may be NULL, not
    /// both. Any sequence of the cache. MLA: k_out [>= n, 1, rank + rope dim], v_out NULL; K = V layers: v_out NULL; CROSS: n = encoder tokens.
    /// KVC_E_OUT_OF_RANGE: a window has dropped tokens (detail = the first kept). KVC_E_NOT_FOUND: seq. KVC_E_INVALID_STATE: the sequence grows in this forward and nothing was appended to the layer (as kvc_attn).
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
    /// State `state` of every sequence of the batch: out \[>= B, shape...\], any activation type,
    /// compact inside a state.
    ///
    /// ```text
    /// KVC_E_INVALID_STATE: not open, not a STATE layer. KVC_E_OUT_OF_RANGE: layer, state. KVC_E_SHAPE,
    /// KVC_E_DTYPE, KVC_E_DEVICE_MISMATCH.
    /// Threading: one call at a time per forward. Device: enqueues.
    /// ```
    pub fn kvc_state_get(
        fwd: *mut kvc_forward,
        layer: i32,
        state: i32,
        out: *mut DLTensor,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// The other way: value \[>= B, shape...\], rounded to the state's dtype.
    ///
    /// ```text
    /// Statuses as kvc_state_get.
    /// Threading: one call at a time per forward. Device: enqueues.
    /// ```
    pub fn kvc_state_set(
        fwd: *mut kvc_forward,
        layer: i32,
        state: i32,
        value: *const DLTensor,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Keep the state of the sequence's present length until it is popped below it or removed:
    /// makes fork and pop to it possible later.
    ///
    /// ```text
    /// On the edge of a block that the sequence has published, the block gets the state too: prefixes hit there.
    /// KVC_E_NOT_FOUND. KVC_E_BUSY: in the open forward. KVC_E_UNSUPPORTED: no STATE layer. KVC_E_NO_MEMORY.
    /// Threading: exclusive. Device: host only.
    /// ```
    pub fn kvc_state_checkpoint(
        cache: *mut kvc_cache,
        seq: kvc_seq,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Linear attention over the new tokens, step or chunked prefill: reads and sets the layer's
    /// state, whose shape is \[H, Dk, Dv\].
    ///
    /// ```text
    /// q, k [>= T, Hk, Dk], Hk divides H (head h reads q and k head h / (H / Hk)); v, out [>= T, H, Dv]; decay: ln(decay) <= 0, as
    /// opt.decay says, NULL for NONE; beta [>= T, H] or NULL (1). Activation types; decay and beta float32. Arithmetic in float32.
    /// KVC_E_INVALID_STATE: not open, not a STATE layer. KVC_E_SHAPE: also a state that is not [H, Dk, Dv]. KVC_E_INVALID_ARGUMENT: decay given
    /// or missing against opt. KVC_E_OUT_OF_RANGE: opt.state, scale. KVC_E_UNSUPPORTED: flags, unknown opt.decay.
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
    /// Causal depthwise convolution over the new tokens with its last inputs kept as state \[C,
    /// W-1\] (newest last), W = kernel width >= 2: out\[t, c\] = act(bias\[c\] + sum_j weight\[c,
    /// j\] x\[t - W + 1 + j, c\]).
    ///
    /// ```text
    /// x, out [>= T, C]; weight float32 [C, W]; bias float32 [C] or NULL. Sets the state. Statuses as kvc_attn_linear.
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
    /// Copy the committed tokens \[begin, end) of a sequence, all layers of the slice, K as stored
    /// (rotated when ON_APPEND); what belongs to layers that are not ATTENTION is left as it is: k
    /// \[layers, end - begin, num_kv_heads, k_dim\], v \[layers, end - begin, num_kv_heads,
    /// v_dim\], any activation type.
    ///
    /// ```text
    /// When layers differ, the heads and dims of the tensors are the largest ones and the rest of a smaller layer is left as it is. Either may be NULL.
    /// K = V layers: K only, v is left as it is.
    /// A window drops whole pages. A position inside a dropped page is KVC_E_OUT_OF_RANGE here and in
    /// kvc_kv_gather, and its page is left out of exports (-1 in KVC_TABLE_BLOCK_TABLE); one that no query sees any
    /// more but whose page is kept reads as stored.
    /// KVC_E_NOT_FOUND. KVC_E_OUT_OF_RANGE: not 0 <= begin <= end <= length, or a window has dropped some (detail = first kept of that layer).
    /// KVC_E_UNSUPPORTED: no storage, no ATTENTION layer. KVC_E_SHAPE, KVC_E_DTYPE.
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
    /// The other way: overwrite the committed tokens \[begin, begin + n), n = dimension 1 of k and
    /// v, with values as they are to be stored (not rotated again).
    ///
    /// ```text
    /// Shared pages are made private first, so siblings keep theirs.
    /// KVC_E_NO_PAGES: for that. KVC_E_BUSY: in the open forward. Others as kvc_debug_get_kv.
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
    /// kvc_debug_get_kv for the MLA layers: latent \[layers, n, latent_rank + latent_rope_dim\].
    ///
    /// ```text
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
    /// kvc_debug_set_kv for the MLA layers.
    ///
    /// ```text
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
    /// kvc_debug_get_kv for one layer of any kind that keeps pages: k \[n, num_kv_heads, k_dim\], v
    /// \[n, num_kv_heads, v_dim\]; MLA: k \[n, 1, rank + rope dim\]; CROSS: begin and end count
    /// encoder tokens; SHARED: the source's.
    ///
    /// ```text
    /// KVC_E_OUT_OF_RANGE: also a layer that is not here. KVC_E_UNSUPPORTED: a layer without pages.
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
    /// kvc_debug_set_kv for one layer.
    ///
    /// ```text
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
    /// The state of a sequence at its committed length: out \[shape...\].
    ///
    /// ```text
    /// KVC_E_NOT_FOUND. KVC_E_OUT_OF_RANGE: layer, state. KVC_E_UNSUPPORTED: no storage, not a STATE layer.
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
    /// Replace the state of a sequence at its committed length; earlier checkpoints, published
    /// blocks and other sequences keep theirs.
    ///
    /// ```text
    /// As after every kvc_debug_set_*, nothing of the sequence is published any more.
    /// KVC_E_BUSY: in the open forward. KVC_E_NO_PAGES: no state slot for it. Others as kvc_debug_get_state.
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
    /// The pool memory of one layer, writable, shared.
    ///
    /// ```text
    /// SHARED: the source's. Elements are those of kvc_layer_info (quantised layers: types of 4 bits
    /// are packed in pairs, strides count elements; their scales are in BYTES).
    /// KVC_E_OUT_OF_RANGE: layer. KVC_E_UNSUPPORTED: no storage, a layer without pages, V of MLA and K = V layers, or KV of unequal K and V. KVC_E_INVALID_ARGUMENT: kind.
    /// Threading: exclusive. Device: host only.
    /// ```
    pub fn kvc_export_pool(
        cache: *mut kvc_cache,
        layer: i32,
        kind: kvc_pool_kind,
        out: *mut *mut DLManagedTensorVersioned,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// The page tables of the open forward's B sequences, as they are with the new tokens (tree
    /// nodes included); a read-only snapshot.
    ///
    /// ```text
    /// INDPTR, INDICES and
    /// PAGE_POSITION list the pages that are kept; BLOCK_TABLE has -1 where a window has dropped one. A CROSS group counts encoder tokens.
    /// `group`: 0..num_groups-1. KVC_E_OUT_OF_RANGE: group. KVC_E_INVALID_ARGUMENT: kind. KVC_E_INVALID_STATE: not open. KVC_E_NO_MEMORY.
    /// Threading: one call at a time per forward. Device: host only.
    /// ```
    pub fn kvc_export_page_table(
        fwd: *mut kvc_forward,
        group: i32,
        kind: kvc_table_kind,
        out: *mut *mut DLManagedTensorVersioned,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Ids of the kept pages of one sequence's committed tokens (tree nodes included), int32
    /// \[pages\], ascending positions; a read-only snapshot.
    ///
    /// ```text
    /// KVC_E_NOT_FOUND: seq. KVC_E_OUT_OF_RANGE: group. KVC_E_NO_MEMORY.
    /// Threading: shared. Device: host only.
    /// ```
    pub fn kvc_export_seq_pages(
        cache: *const kvc_cache,
        seq: kvc_seq,
        group: i32,
        out: *mut *mut DLManagedTensorVersioned,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Write k \[>= T, heads, k_dim\] and v \[>= T, heads, v_dim\] to `slots` int64 \[T\] = page \*
    /// page_size + offset; \< 0: skip.
    ///
    /// ```text
    /// T = length of slots.
    /// Threading: any, not two that write the same slots. Device: the CPU, complete on return; CUDA, enqueues on opt->stream.
    /// ```
    pub fn kvc_op_append(
        pool: *const kvc_op_pool,
        opt: *const kvc_op_opt,
        slots: *const DLTensor,
        k: *const DLTensor,
        v: *const DLTensor,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Attention of q \[T, num_q_heads, k_dim\] over pages; out \[T, num_q_heads, v_dim\], lse
    /// float32 \[T, num_q_heads\].
    ///
    /// ```text
    /// On a CUDA device T is dimension 0 of q where qo_indptr is given, rows behind the last cut stay as they are, and KVC_ATTN_BATCH_INVARIANT is
    /// KVC_E_UNSUPPORTED, for this and the two below.
    /// Threading: any. Device: the CPU, complete on return; CUDA, enqueues on opt->stream.
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
    /// Attention of packed q \[T, num_q_heads, k_dim\] over packed k \[K, num_kv_heads, k_dim\], v
    /// \[K, num_kv_heads, v_dim\]; qo_indptr, kv_indptr int32 \[B+1\] cut them into sequences;
    /// kv_indptr NULL: qo_indptr.
    ///
    /// ```text
    /// Threading: any. Device: the CPU, complete on return; CUDA, enqueues on opt->stream.
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
    /// Absorbed MLA over a pool of layout MLA: q \[T, heads, rank + rope dim\], out \[T, heads,
    /// latent_rank\]; opt->attn->scale must be given.
    ///
    /// ```text
    /// Threading: any. Device: the CPU, complete on return; CUDA, enqueues on opt->stream.
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
    /// kvc_attn_merge without a forward: T = dimension 0 of out.
    ///
    /// ```text
    /// Threading: any. Device: the CPU, complete on return; CUDA, enqueues on opt->stream.
    /// ```
    pub fn kvc_op_merge(
        opt: *const kvc_op_opt,
        out: *mut DLTensor,
        lse: *mut DLTensor,
        other_out: *const DLTensor,
        other_lse: *const DLTensor,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Copy all keys of the table's sequences, packed in their order, into k_out \[>= sum of
    /// seq_lens, heads, k_dim\] and v_out; either may be NULL.
    ///
    /// ```text
    /// Threading: any. Device: the CPU only, complete on return.
    /// ```
    pub fn kvc_op_gather(
        pool: *const kvc_op_pool,
        table: *const kvc_op_table,
        opt: *const kvc_op_opt,
        k_out: *mut DLTensor,
        v_out: *mut DLTensor,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Copy pages inside a pool: pairs int64 \[n, 2\] of (from, to), distinct destinations, none of
    /// which is a source (on CUDA not checked).
    ///
    /// ```text
    /// Threading: any, not on the same pages. Device: the CPU, complete on return; CUDA, enqueues on opt->stream.
    /// ```
    pub fn kvc_op_copy_pages(
        pool: *const kvc_op_pool,
        opt: *const kvc_op_opt,
        pairs: *const DLTensor,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Rotate x \[T, heads, dim\] into out (which may be x: same address, strides and type) by
    /// opt->rope at opt->positions.
    ///
    /// ```text
    /// Threading: any. Device: the CPU, complete on return; CUDA, enqueues on opt->stream.
    /// ```
    pub fn kvc_op_rotate(
        opt: *const kvc_op_opt,
        x: *const DLTensor,
        out: *mut DLTensor,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// kvc_attn_linear over the host's own states \[B, H, Dk, Dv\], updated in place; qo_indptr
    /// int32 \[B+1\] cuts the tokens into sequences, NULL: one each.
    ///
    /// ```text
    /// Threading: any, not on the same states. Device: the CPU, complete on return; CUDA, enqueues on opt->stream.
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
    /// Keys of the full blocks of `num_tokens` tokens: out_hashes \[num_tokens /
    /// block_tokens\]\[KVC_HASH_BYTES\]; two-call array, \*len counts keys.
    ///
    /// ```text
    /// Same result in every process and language.
    /// KVC_E_INVALID_ARGUMENT: block_tokens < 1, NULL arrays, a key of type 0. KVC_E_OUT_OF_RANGE: salt or key longer than 4096 bytes, offset < 0.
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
    /// Leading tokens that kvc_prefix_attach would find now: of what lies on the host only as much
    /// as pages are free, and a quota leaves room, to bring it back.
    ///
    /// ```text
    /// Changes nothing, counts in no metric.
    /// KVC_E_INVALID_ARGUMENT: NULL, neither tokens nor hashes, a key of type 0. KVC_E_OUT_OF_RANGE: a length beyond its limit. KVC_E_UNSUPPORTED.
    /// Threading: shared. Device: host only.
    /// ```
    pub fn kvc_prefix_match(
        cache: *const kvc_cache,
        query: *const kvc_prefix_query,
        out_tokens: *mut i64,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Add `seq` with the longest hit (its length is then \*out_tokens, 0 when nothing hits), in
    /// the query's namespace: later forwards with `tokens` publish there.
    ///
    /// ```text
    /// Pages on the host are copied back as long as pages are free; the hit is shorter when they are not.
    /// Statuses of kvc_prefix_match and kvc_seq_add. KVC_E_BUSY: a forward is open.
    /// Threading: exclusive. Device: enqueues.
    /// ```
    pub fn kvc_prefix_attach(
        cache: *mut kvc_cache,
        seq: kvc_seq,
        query: *const kvc_prefix_query,
        out_tokens: *mut i64,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Say that the first query->num_tokens (at most the length) tokens of `seq` are these, in this
    /// namespace, and publish their full blocks.
    ///
    /// ```text
    /// Replaces what was
    /// known of the sequence. *out_tokens: tokens of it that are in the index now. Blocks from the first token on that
    /// a KVC_FORWARD_PARTIAL has left unwritten are not published.
    /// KVC_E_NOT_FOUND. KVC_E_OUT_OF_RANGE: more tokens than the sequence has. KVC_E_BUSY: a forward is open. KVC_E_INVALID_STATE: swapped out; an
    /// uncommitted tree; positions moved by kvc_seq_shift, a window set by kvc_seq_set_window, values written by kvc_debug_set_*, or older than
    /// kvc_prefix_reset. Others as kvc_prefix_match.
    /// Threading: exclusive. Device: host only.
    /// ```
    pub fn kvc_prefix_insert(
        cache: *mut kvc_cache,
        seq: kvc_seq,
        query: *const kvc_prefix_query,
        out_tokens: *mut i64,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Keep the full blocks of the query that are in the index (on the device) from being evicted;
    /// counts.
    ///
    /// ```text
    /// *out_tokens: tokens pinned. Pinned pages are not free.
    /// Threading: exclusive. Device: host only.
    /// ```
    pub fn kvc_prefix_pin(
        cache: *mut kvc_cache,
        query: *const kvc_prefix_query,
        out_tokens: *mut i64,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Undo one kvc_prefix_pin of the same query; \*out_tokens: tokens of the leading blocks that
    /// were pinned.
    ///
    /// ```text
    /// Threading: exclusive. Device: host only.
    /// ```
    pub fn kvc_prefix_unpin(
        cache: *mut kvc_cache,
        query: *const kvc_prefix_query,
        out_tokens: *mut i64,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Evict until at least `pages` pages have left the index (to the host when it has room), or
    /// nothing evictable is left.
    ///
    /// ```text
    /// *out_freed: how many did.
    /// KVC_E_OUT_OF_RANGE: negative.
    /// Threading: exclusive. Device: enqueues.
    /// ```
    pub fn kvc_prefix_evict(
        cache: *mut kvc_cache,
        pages: i64,
        out_freed: *mut i64,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Forget the whole index, pins and host copies too (new weights).
    ///
    /// ```text
    /// Sequences keep their pages, but what they have computed so far is never published.
    /// KVC_E_BUSY: a forward is open.
    /// Threading: exclusive. Device: host only.
    /// ```
    pub fn kvc_prefix_reset(cache: *mut kvc_cache, err: *mut kvc_error) -> kvc_status;
    /// Give the namespace `salt` a quota: the device pages and states that the index holds for it
    /// stay within max_bytes (what does not fit replaces its own least recently used blocks, or is
    /// not published), and other namespaces' traffic evicts them only when nothing else can be
    /// evicted.
    ///
    /// ```text
    /// 0: no quota.
    /// Shrinking evicts at once what is not in use.
    /// KVC_E_OUT_OF_RANGE: salt longer than 4096 bytes, more than 4096 namespaces with quotas.
    /// Threading: exclusive. Device: host only.
    /// ```
    pub fn kvc_prefix_quota_set(
        cache: *mut kvc_cache,
        salt: *const c_void,
        salt_size: usize,
        max_bytes: u64,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// The oldest unpolled events, at most \*count of them, into out (out\[0\].struct_size is the
    /// stride); \*count: how many there were.
    ///
    /// ```text
    /// When more than
    /// config.event_capacity wait, the oldest are lost, which the next event's number shows.
    /// KVC_E_UNSUPPORTED: config.event_capacity is 0.
    /// Threading: exclusive. Device: host only.
    /// ```
    pub fn kvc_events_poll(
        cache: *mut kvc_cache,
        out: *mut kvc_event,
        count: *mut usize,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Everything that the index holds as STORED events, parents before their children; two-call
    /// array.
    ///
    /// ```text
    /// *out_number: the number of the last event that they
    /// include: apply polled events with larger ones.
    /// Threading: shared. Device: host only.
    /// ```
    pub fn kvc_events_snapshot(
        cache: *const kvc_cache,
        out: *mut kvc_event,
        count: *mut usize,
        out_number: *mut u64,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Move sequences to the host: their pages, the states of STATE layers, their checkpoints.
    ///
    /// ```text
    /// Pages and states that several of them share stay shared; pages
    /// that others or the prefix index hold stay there as well. A swapped sequence keeps id, length and namespace; until it is swapped in only kvc_seq_remove, kvc_seq_length,
    /// kvc_seq_info_get, kvc_seq_list and kvc_swap_in take it, others answer KVC_E_INVALID_STATE.
    /// KVC_E_NOT_FOUND. KVC_E_INVALID_ARGUMENT: n = 0, duplicate ids. KVC_E_INVALID_STATE: swapped already, an uncommitted tree. KVC_E_BUSY: in the
    /// open forward. KVC_E_NO_PAGES: the host pool is full (detail = missing host pages). KVC_E_UNSUPPORTED: no host budget. KVC_E_NO_MEMORY.
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
    /// Bring them back.
    ///
    /// ```text
    /// What sequences of one kvc_swap_out shared is shared again when they come back in one call.
    /// KVC_E_INVALID_STATE: not swapped. KVC_E_NO_PAGES: detail = pages (and state slots) missing. Others as kvc_swap_out.
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
    /// Copy whole pages (all layers) between the pools: pairs int64 \[n, 2\] on the CPU of (from,
    /// to), any n >= 0, borrowed for the call.
    ///
    /// ```text
    /// Runs of pages that are adjacent
    /// in both pools, ascending or descending, are copied at once. The tables of sequences are not looked at: on the device, any page may be named.
    /// KVC_E_SHAPE, KVC_E_DTYPE, KVC_E_DEVICE_MISMATCH: pairs. KVC_E_OUT_OF_RANGE: a page id (detail = row). KVC_E_INVALID_ARGUMENT: a destination twice
    /// (detail = row). KVC_E_UNSUPPORTED: no storage, no host budget, unknown direction. KVC_E_INVALID_STATE: see above.
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
    /// The same inside the device pool.
    ///
    /// ```text
    /// Also refused (KVC_E_INVALID_ARGUMENT): a page that is source of one pair and destination of another, whose result
    /// would depend on the order.
    /// Threading: exclusive. Device: enqueues.
    /// ```
    pub fn kvc_pages_copy(
        cache: *mut kvc_cache,
        pairs: *const DLTensor,
        stream: kvc_stream,
        out_fence: *mut *mut kvc_fence,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// out_done: 1 when the copies are complete, else 0.
    ///
    /// ```text
    /// Threading: any. Device: host only.
    /// ```
    pub fn kvc_fence_query(
        fence: *const kvc_fence,
        out_done: *mut i32,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Wait for the copies, at most timeout_ns nanoseconds; negative: for ever.
    ///
    /// ```text
    /// KVC_E_TIMEOUT: not done by then.
    /// Threading: any. Device: blocks until done.
    /// ```
    pub fn kvc_fence_wait(
        fence: *const kvc_fence,
        timeout_ns: i64,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Let what is enqueued on `stream` from now on wait for the copies.
    ///
    /// ```text
    /// On the CPU: waits here.
    /// Threading: any. Device: enqueues on the stream.
    /// ```
    pub fn kvc_fence_wait_on_stream(
        fence: *const kvc_fence,
        stream: kvc_stream,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// NULL is accepted.
    ///
    /// ```text
    /// The copies go on. A fence may outlive its cache.
    /// Threading: any, once. Device: host only.
    /// ```
    pub fn kvc_fence_destroy(fence: *mut kvc_fence);
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
