package kvcache

/*
#include "shim.h"
*/
import "C"

// PlanInfo is a plan as made, defaults filled in.
type PlanInfo struct {
	PageSize            int32 // tokens
	NumLayers           int32 // of the whole model
	LayerBegin          int32
	LayerEnd            int32
	NumGroups           int32 // page tables per sequence; see Plan.Group
	NumLayerRegions     int32 // regions of a page that PoolLayerFirst keeps apart; see LayerInfo.Region
	NumPages            int64
	PageBytes           uint64 // one page, all layers of the slice
	BytesPerToken       uint64 // one token, all layers of the slice
	PoolBytes           uint64 // NumPages * PageBytes
	MaxTokens           int64  // tokens all pages hold together while no window has dropped any
	MaxSeqLen           int64  // longest single sequence
	StateSlotBytes      uint64 // recurrent state of one sequence, all STATE layers; 0: none
	NumStateSlots       int64  // 0: no limit
	StateSlotPages      int64  // pages that a state slot takes out of use; 0: states have memory of their own
	PrefixBlock         int32  // tokens of a block of the prefix index: least common multiple of the groups' page_size
	ForwardsInFlight    int32
	NumHostPages        int64   // HostByteBudget / PageBytes
	RequestPages        int64   // Plan.RequestPages(MaxSeqLen)
	Concurrency         float64 // requests of MaxSeqLen tokens that the pages hold at once; 0: no pages
	Waste               float64 // share of such a request that is padding or lies behind its last token, 0..1
	CosSinBytesPerToken uint64  // beside the pool, for every token in sight: cos and sin of layers that rotate K on read
	HostBytes           uint64  // upper bound of Stats.HostBytes of a full cache, with MaxSeqs sequences that share no page and forwards of MaxTokensPerForward tokens; 0: no pages
}

func goPlanInfo(c *C.kvc_plan_info) *PlanInfo {
	out := &PlanInfo{
		PageSize:            int32(c.page_size),
		NumLayers:           int32(c.num_layers),
		LayerBegin:          int32(c.layer_begin),
		LayerEnd:            int32(c.layer_end),
		NumGroups:           int32(c.num_groups),
		NumLayerRegions:     int32(c.num_layer_regions),
		NumPages:            int64(c.num_pages),
		PageBytes:           uint64(c.page_bytes),
		BytesPerToken:       uint64(c.bytes_per_token),
		PoolBytes:           uint64(c.pool_bytes),
		MaxTokens:           int64(c.max_tokens),
		MaxSeqLen:           int64(c.max_seq_len),
		StateSlotBytes:      uint64(c.state_slot_bytes),
		NumStateSlots:       int64(c.num_state_slots),
		StateSlotPages:      int64(c.state_slot_pages),
		PrefixBlock:         int32(c.prefix_block),
		ForwardsInFlight:    int32(c.forwards_in_flight),
		NumHostPages:        int64(c.num_host_pages),
		RequestPages:        int64(c.request_pages),
		Concurrency:         float64(c.concurrency),
		Waste:               float64(c.waste),
		CosSinBytesPerToken: uint64(c.cos_sin_bytes_per_token),
		HostBytes:           uint64(c.host_bytes),
	}
	return out
}

// GroupInfo is a page table: the layers that see the same keys.
type GroupInfo struct {
	NumLayers     int32
	IsCross       bool   // counts encoder tokens
	Window        int64  // of its layers; 0: none
	Chunk         int64  // of its layers; 0: none
	PageBytes     uint64 // that its layers use of a page
	PaddingBytes  uint64 // that they leave unused
	PageSize      int32  // tokens per page
	FirstLayer    int32  // global id of its first layer in the slice; -1: none here
	RequestPages  int64  // Plan.RequestPages(MaxSeqLen)
	BytesPerToken uint64 // of its layers
	KeepTokens    int64  // kept rows (Layer.KeepTokens): its tables end after so many tokens; 0: they have all
}

func goGroupInfo(c *C.kvc_group_info) *GroupInfo {
	out := &GroupInfo{
		NumLayers:     int32(c.num_layers),
		IsCross:       c.is_cross != 0,
		Window:        int64(c.window),
		Chunk:         int64(c.chunk),
		PageBytes:     uint64(c.page_bytes),
		PaddingBytes:  uint64(c.padding_bytes),
		PageSize:      int32(c.page_size),
		FirstLayer:    int32(c.first_layer),
		RequestPages:  int64(c.request_pages),
		BytesPerToken: uint64(c.bytes_per_token),
		KeepTokens:    int64(c.keep_tokens),
	}
	return out
}

// LayerInfo is a layer as planned, defaults filled in.
type LayerInfo struct {
	Kind          LayerKind
	Group         int32 // page table this layer reads: index for Forward.ExportPageTable; -1: none
	NumQHeads     int32
	NumKVHeads    int32
	KDim          int32
	VDim          int32
	KDType        DType
	VDType        DType
	PageBytes     uint64 // this layer's part of one page
	KPageBytes    uint64 // its K part; V follows
	VPageBytes    uint64
	BytesPerToken uint64
	Window        int64
	Chunk         int64
	SourceLayer   int32 // SHARED; else -1
	LatentRank    int32
	LatentRopeDim int32
	Flags         int32
	NumStates     int32
	Region        int32  // of a page, where the layer lies: the tensor of PoolLayerFirst borrowed storage; -1: none
	StateBytes    uint64 // all states of the layer, one sequence
	RegionBytes   uint64 // of that region in one page
	RegionOffset  uint64 // where the layer's part begins in the region
	Quant         Quant  // of K
	PageSize      int32  // of its group; 0: keeps no pages
	KScaleBytes   uint64 // of one page, behind V; 0: none
	VScaleBytes   uint64
	VQuant        Quant // of V; QuantNone: it is not quantised
	KeepTokens    int32 // leading tokens that are kept unquantised
	KeptGroup     int32 // page table of their rows; -1: KeepTokens is 0
}

func goLayerInfo(c *C.kvc_layer_info) *LayerInfo {
	out := &LayerInfo{
		Kind:          LayerKind(c.kind),
		Group:         int32(c.group),
		NumQHeads:     int32(c.num_q_heads),
		NumKVHeads:    int32(c.num_kv_heads),
		KDim:          int32(c.k_dim),
		VDim:          int32(c.v_dim),
		KDType:        goDType(c.k_dtype),
		VDType:        goDType(c.v_dtype),
		PageBytes:     uint64(c.page_bytes),
		KPageBytes:    uint64(c.k_page_bytes),
		VPageBytes:    uint64(c.v_page_bytes),
		BytesPerToken: uint64(c.bytes_per_token),
		Window:        int64(c.window),
		Chunk:         int64(c.chunk),
		SourceLayer:   int32(c.source_layer),
		LatentRank:    int32(c.latent_rank),
		LatentRopeDim: int32(c.latent_rope_dim),
		Flags:         int32(c.flags),
		NumStates:     int32(c.num_states),
		Region:        int32(c.region),
		StateBytes:    uint64(c.state_bytes),
		RegionBytes:   uint64(c.region_bytes),
		RegionOffset:  uint64(c.region_offset),
		Quant:         Quant(c.quant),
		PageSize:      int32(c.page_size),
		KScaleBytes:   uint64(c.k_scale_bytes),
		VScaleBytes:   uint64(c.v_scale_bytes),
		VQuant:        Quant(c.v_quant),
		KeepTokens:    int32(c.keep_tokens),
		KeptGroup:     int32(c.kept_group),
	}
	return out
}

// SeqInfo is a sequence.
type SeqInfo struct {
	Length         int64 // committed tokens
	FirstPosition  int64 // first position that every group still keeps, sinks aside; -1: empty
	LastPosition   int64 // last kept position; -1: empty
	NumPages       int64 // held, all groups together
	NumSharedPages int64 // of these, held by other sequences too
	Window         int64 // Cache.SetWindow; 0: none
	Sink           int64 // 0: none
	InForward      bool  // in the open forward
	NumCheckpoints int32 // positions < length with a recurrent state; 0 for caches without STATE layers
	TreeNodes      int64 // uncommitted
	CrossLength    int64 // encoder tokens
	IsSwapped      bool  // by Cache.SwapOut; NumPages are of the host
	KnownTokens    int64 // leading tokens whose ids the cache knows
}

func goSeqInfo(c *C.kvc_seq_info) *SeqInfo {
	out := &SeqInfo{
		Length:         int64(c.length),
		FirstPosition:  int64(c.first_position),
		LastPosition:   int64(c.last_position),
		NumPages:       int64(c.num_pages),
		NumSharedPages: int64(c.num_shared_pages),
		Window:         int64(c.window),
		Sink:           int64(c.sink),
		InForward:      c.in_forward != 0,
		NumCheckpoints: int32(c.num_checkpoints),
		TreeNodes:      int64(c.tree_nodes),
		CrossLength:    int64(c.cross_length),
		IsSwapped:      c.is_swapped != 0,
		KnownTokens:    int64(c.known_tokens),
	}
	return out
}

// Stats is what a cache holds and has done.
type Stats struct {
	NumSeqs           int64
	TotalLength       int64 // tokens over all sequences; a shared token counts once per sequence
	PagesTotal        int64
	PagesAvailable    int64
	PagesUsed         int64 // held by sequences or the open forward
	PagesShared       int64 // used pages that more than one sequence holds
	PagesPeak         int64 // largest pages_used since creation
	PageBytes         uint64
	PoolBytes         uint64 // NumPages * PageBytes
	Forwards          uint64 // ended
	ForwardsAborted   uint64
	TokensAppended    uint64 // by ended forwards
	PagesCopied       uint64 // copy-on-write copies
	NoPages           uint64 // begins answered KVC_E_NO_PAGES
	StepBytes         uint64 // last begin: bytes that a device back end is sent (sequence deltas, new page ids)
	StepCopies        uint64 // last begin: number of host to device copies
	StateSlotsUsed    int64  // states and checkpoints kept
	StateSlotBytes    uint64
	TreeTokens        uint64 // uncommitted tree nodes over all sequences
	Cascades          uint64 // shared prefixes read once for several sequences, attention calls together
	SlotsUnused       int64  // token slots of used pages behind the last token of their sequence
	PagesIndexed      int64  // pages that the prefix index knows, used ones too
	PagesCached       int64  // of these, held by the index alone: counted in pages_available
	PrefixBlocks      int64  // in the index, both tiers
	PrefixBlocksHost  int64  // of these, with pages on the host
	PrefixPinned      int64  // pinned blocks
	PrefixLookups     uint64 // Cache.PrefixAttach
	PrefixQueryTokens uint64
	PrefixHitTokens   uint64
	RecentQueryTokens uint64 // of the last 1,000 lookups
	RecentHitTokens   uint64
	PrefixStored      uint64 // blocks that became part of the index
	PrefixDuplicates  uint64 // blocks that were there already: the sequence took them over
	PrefixEvicted     uint64 // blocks that left it for others
	PrefixRejected    uint64 // blocks that a quota kept out
	PrefixDemoted     uint64 // pages that went to the host
	PrefixPromoted    uint64 // pages that came back
	HostPagesTotal    int64
	HostPagesUsed     int64 // by swapped sequences and by the index
	NumSwappedSeqs    int64
	PagesSwappedOut   uint64
	PagesSwappedIn    uint64
	CopyRuns          uint64 // contiguous copies that swaps and page copies were merged into
	EventsMade        uint64
	EventsLost        uint64     // overwritten before they were polled
	CosSinBytes       uint64     // on the host: cos and sin of layers that rotate K on read
	StateSlotsCached  int64      // states that the prefix index alone keeps; they give way to those of sequences
	HostBytes         uint64     // host memory allocated for this cache, all pages of a pool on the CPU and of the host pool included, written or not
	ValuesSaturated   uint64     // elements of K and V that were clipped when they were stored with a scale of their tensor; on the CPU
	BlockLifetime     [32]uint64 // evicted blocks by time in the index: bucket i counts 2^i milliseconds and more
	BlockIdle         [32]uint64 // evicted blocks by time since their last use
	BlockReuseGap     [32]uint64 // hits by time since the block's use before
}

func goStats(c *C.kvc_stats) *Stats {
	out := &Stats{
		NumSeqs:           int64(c.num_seqs),
		TotalLength:       int64(c.total_length),
		PagesTotal:        int64(c.pages_total),
		PagesAvailable:    int64(c.pages_available),
		PagesUsed:         int64(c.pages_used),
		PagesShared:       int64(c.pages_shared),
		PagesPeak:         int64(c.pages_peak),
		PageBytes:         uint64(c.page_bytes),
		PoolBytes:         uint64(c.pool_bytes),
		Forwards:          uint64(c.forwards),
		ForwardsAborted:   uint64(c.forwards_aborted),
		TokensAppended:    uint64(c.tokens_appended),
		PagesCopied:       uint64(c.pages_copied),
		NoPages:           uint64(c.no_pages),
		StepBytes:         uint64(c.step_bytes),
		StepCopies:        uint64(c.step_copies),
		StateSlotsUsed:    int64(c.state_slots_used),
		StateSlotBytes:    uint64(c.state_slot_bytes),
		TreeTokens:        uint64(c.tree_tokens),
		Cascades:          uint64(c.cascades),
		SlotsUnused:       int64(c.slots_unused),
		PagesIndexed:      int64(c.pages_indexed),
		PagesCached:       int64(c.pages_cached),
		PrefixBlocks:      int64(c.prefix_blocks),
		PrefixBlocksHost:  int64(c.prefix_blocks_host),
		PrefixPinned:      int64(c.prefix_pinned),
		PrefixLookups:     uint64(c.prefix_lookups),
		PrefixQueryTokens: uint64(c.prefix_query_tokens),
		PrefixHitTokens:   uint64(c.prefix_hit_tokens),
		RecentQueryTokens: uint64(c.recent_query_tokens),
		RecentHitTokens:   uint64(c.recent_hit_tokens),
		PrefixStored:      uint64(c.prefix_stored),
		PrefixDuplicates:  uint64(c.prefix_duplicates),
		PrefixEvicted:     uint64(c.prefix_evicted),
		PrefixRejected:    uint64(c.prefix_rejected),
		PrefixDemoted:     uint64(c.prefix_demoted),
		PrefixPromoted:    uint64(c.prefix_promoted),
		HostPagesTotal:    int64(c.host_pages_total),
		HostPagesUsed:     int64(c.host_pages_used),
		NumSwappedSeqs:    int64(c.num_swapped_seqs),
		PagesSwappedOut:   uint64(c.pages_swapped_out),
		PagesSwappedIn:    uint64(c.pages_swapped_in),
		CopyRuns:          uint64(c.copy_runs),
		EventsMade:        uint64(c.events_made),
		EventsLost:        uint64(c.events_lost),
		CosSinBytes:       uint64(c.cos_sin_bytes),
		StateSlotsCached:  int64(c.state_slots_cached),
		HostBytes:         uint64(c.host_bytes),
		ValuesSaturated:   uint64(c.values_saturated),
	}
	for i := range out.BlockLifetime {
		out.BlockLifetime[i] = uint64(c.block_lifetime[i])
	}
	for i := range out.BlockIdle {
		out.BlockIdle[i] = uint64(c.block_idle[i])
	}
	for i := range out.BlockReuseGap {
		out.BlockReuseGap[i] = uint64(c.block_reuse_gap[i])
	}
	return out
}
