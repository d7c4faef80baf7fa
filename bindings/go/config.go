package kvcache

/*
#include "shim.h"
*/
import "C"

import "unsafe"

// LayerKind says what a layer keeps.
type LayerKind int32

// The kinds of layers.
const (
	LayerAttention LayerKind = C.KVC_LAYER_ATTENTION // K and V per token
	LayerMLA       LayerKind = C.KVC_LAYER_MLA       // one latent row per token for all heads (DeepSeek-V2)
	LayerCross     LayerKind = C.KVC_LAYER_CROSS     // K and V of the encoder's tokens, see Forward.AttnCross
	LayerState     LayerKind = C.KVC_LAYER_STATE     // recurrent state, see Forward.StateGet and Forward.AttnLinear
	LayerShared    LayerKind = C.KVC_LAYER_SHARED    // keeps nothing: reads the K and V of SourceLayer
	LayerNone      LayerKind = C.KVC_LAYER_NONE      // keeps nothing and is never attended
)

// Quant is a form of quantised storage: planned, paged, shared and exported everywhere. A GPU computes on all of
// it, the CPU on types of 8 bits. There those of 4 bits need StorageBorrowed or StorageNone, where the host's own
// kernels attend.
type Quant int32

// The forms of quantised storage.
const (
	QuantNone         Quant = C.KVC_QUANT_NONE
	QuantPerTensor    Quant = C.KVC_QUANT_PER_TENSOR // Layer.KScale and VScale
	QuantPerTokenHead Quant = C.KVC_QUANT_PER_TOKEN_HEAD
	QuantBlock16      Quant = C.KVC_QUANT_BLOCK16
	QuantOff          Quant = C.KVC_QUANT_OFF // Layer.VQuant alone: V is not quantised
)

// RopeMode says when K is rotated.
type RopeMode int32

// The modes of rotation.
const (
	RopeNone     RopeMode = C.KVC_ROPE_NONE      // the library rotates nothing
	RopeOnAppend RopeMode = C.KVC_ROPE_ON_APPEND // K is stored rotated
	RopeOnRead   RopeMode = C.KVC_ROPE_ON_READ   // K is rotated whenever it is read: needed for sinks
)

// RopeStyle says which elements make a pair.
type RopeStyle int32

// The styles of rotation.
const (
	RopeHalf        RopeStyle = C.KVC_ROPE_HALF        // pairs (i, i + RotaryDim/2): NeoX, Llama in Hugging Face's format
	RopeInterleaved RopeStyle = C.KVC_ROPE_INTERLEAVED // pairs (2i, 2i + 1): GPT-J, Llama in Meta's own format and in GGUF
)

// RopeScaling changes the frequencies.
type RopeScaling int32

// The scalings.
const (
	RopeScalingNone     RopeScaling = C.KVC_ROPE_SCALING_NONE
	RopeScalingLlama3   RopeScaling = C.KVC_ROPE_SCALING_LLAMA3
	RopeScalingYarn     RopeScaling = C.KVC_ROPE_SCALING_YARN
	RopeScalingLongRope RopeScaling = C.KVC_ROPE_SCALING_LONGROPE
)

// SectionLayout says which pairs turn by which row of positions (M-RoPE).
type SectionLayout int32

// The layouts of sections.
const (
	SectionsContiguous  SectionLayout = C.KVC_ROPE_SECTIONS_CONTIGUOUS
	SectionsInterleaved SectionLayout = C.KVC_ROPE_SECTIONS_INTERLEAVED
)

// Rope is a rotary embedding; kvc_rope in kvcache.h has the formulas. Zero fields mean the defaults stated
// there.
type Rope struct {
	Mode            RopeMode
	Style           RopeStyle
	RotaryDim       int     // even, at most KDim; 0: KDim
	Theta           float64 // 0: 10000
	Scale           float64 // factor on the position; 0: 1
	FreqFactors     []float32
	LongFreqFactors []float32 // RopeScalingLongRope; as many as FreqFactors
	Scaling         RopeScaling
	Sections        []int // at most 4; none or one: one position per token
	SectionLayout   SectionLayout
	Factor          float64
	LowFreqFactor   float64
	HighFreqFactor  float64
	BetaFast        float64
	BetaSlow        float64
	AttentionFactor float64
	OriginalContext int64
}

// State is one recurrent state of a LayerState layer.
type State struct {
	Shape []int
	DType DType   // zero: float32
	Init  *Tensor // value of an empty sequence, copied; nil: zeros
}

// Layer is one layer of the model.
type Layer struct {
	Kind          LayerKind
	NumQHeads     int // multiple of NumKVHeads; 0: NumKVHeads
	NumKVHeads    int
	KDim          int // elements of a K (and q) head
	VDim          int // elements of a V (and out) head; 0: KDim
	Quant         Quant
	KDType        DType // storage type; zero: bfloat16
	VDType        DType // zero: KDType; with QuantOff bfloat16
	Rope          *Rope
	Window        int64 // 0: all keys; W: a query at position p sees keys p-W+1..p
	Chunk         int64 // 0: off; C: a query at p sees keys from p/C*C on
	SourceLayer   int   // LayerShared
	LatentRank    int   // LayerMLA
	LatentRopeDim int   // LayerMLA
	VIsK          bool  // the K row is the V row too: stored once
	States        []State
	KScale        float32 // QuantPerTensor: value of K = stored element * KScale; 0: 1. Others: 0
	VScale        float32 // the same of V
	VQuant        Quant   // of V apart from K: another kind, or QuantOff; zero: Quant
	KeepTokens    int     // quantised ATTENTION and MLA layers: leading tokens of a sequence that are kept in bfloat16
}

// Storage says whose memory the pages are.
type Storage int32

// The kinds of storage.
const (
	StorageOwned    Storage = C.KVC_STORAGE_OWNED    // the library's
	StorageBorrowed Storage = C.KVC_STORAGE_BORROWED // Config.PoolTensors
	StorageNone     Storage = C.KVC_STORAGE_NONE     // no tensor memory: bookkeeping only
)

// PoolLayout orders layers and pages.
type PoolLayout int32

// The layouts of a pool.
const (
	PoolLayerFirst PoolLayout = C.KVC_POOL_LAYER_FIRST // the pages of one layer lie together; fastest to read
	PoolPageFirst  PoolLayout = C.KVC_POOL_PAGE_FIRST  // all layers of a page lie together; one copy moves a page
)

// Executor is a host's own threads, as functions of C: see kvc_executor. There is no form for Go functions,
// since they would be called for every part of every attention.
type Executor struct {
	User        unsafe.Pointer // memory outside of Go's heap, valid until the cache is closed
	Concurrency unsafe.Pointer // int32_t (*)(void *user)
	ParallelFor unsafe.Pointer // void (*)(void *user, int64_t, void (*fn)(void *, int64_t, int32_t), void *arg)
}

// Config says what to plan. Zero fields mean the defaults of kvc_config.
type Config struct {
	PadPages            bool // every group has PageSize tokens per page
	ClearPages          bool // pages and state slots are zeroed before another sequence gets them
	NoHugePages         bool // memory is committed in the system's small pages
	Device              Device
	PageSize            int // tokens per page; 0: 16
	Layers              []Layer
	LayerBegin          int // pipeline slice kept here, half open; both 0: all
	LayerEnd            int
	MaxSeqs             int
	ForwardsInFlight    int
	MaxTokensPerForward int64
	MaxSeqLen           int64
	NumPages            int64 // or ByteBudget, not both
	ByteBudget          uint64
	HostByteBudget      uint64
	Storage             Storage
	PoolLayout          PoolLayout
	// PoolTensors are the memory of StorageBorrowed, outside of Go's heap (FromPointer, Block), valid until
	// the cache is closed and all exports are.
	PoolTensors   []*Tensor
	NumThreads    int       // 0: one per core; 1: the caller's only, as on a GPU, which takes 0 and 1
	CPUISA        ISA       // on a GPU: the zero value
	Allocator     Allocator // gives the pool of StorageOwned; nil: the library's own
	Executor      *Executor // replaces the library's threads; on a GPU: nil
	MaxCrossLen   int64
	StateStride   int64
	NumStateSlots int64
	EventCapacity int64 // events kept for Cache.PollEvents; 0: none are made
	// CPSize is the number of context parallel ranks that the tokens of a sequence are dealt out over; 0: 1. For
	// plans alone.
	CPSize int
}
