package kvcache

/*
#include "shim_library.h"
*/
import "C"

import (
	"unsafe"
)

// ABIVersion is the version of kvcache.h that this package was written for: major << 16 | minor.
const ABIVersion uint32 = C.KVC_ABI_VERSION_MAJOR<<16 | C.KVC_ABI_VERSION_MINOR

// Library is a loaded libkvcache. It has no state of its own but the logger, and needs no Close.
type Library struct {
	api  C.uintptr_t // const kvc_api *, static storage
	path string
}

// Path is the file that was loaded.
func (l *Library) Path() string { return l.path }

// ABIVersion is the version of the loaded library's ABI.
func (l *Library) ABIVersion() uint32 { return uint32(C.shim_abi_version(l.api)) }

// Version is the version and build of the library, for example "0.1.0 cpu".
func (l *Library) Version() string { return C.GoString(C.shim_version_string(l.api)) }

// StatusName is the library's own name of a status.
func (l *Library) StatusName(s Status) string {
	return C.GoString(C.shim_status_name(l.api, C.int32_t(s)))
}

// HasFeature tells whether the build has a feature, by the names of kvc_has_feature.
func (l *Library) HasFeature(name string) bool {
	text, err := cText("name", name)
	if err != nil {
		return false
	}
	defer C.free(unsafe.Pointer(text))
	return C.shim_has_feature(l.api, text) != 0
}

// ISA is an instruction set of the CPU kernels.
type ISA int32

// The instruction sets. Auto takes the best the machine has; Reference computes in double precision: slow,
// for comparing.
const (
	ISAAuto       ISA = C.KVC_CPU_ISA_AUTO
	ISAReference  ISA = C.KVC_CPU_ISA_REFERENCE
	ISAScalar     ISA = C.KVC_CPU_ISA_SCALAR
	ISAAVX2       ISA = C.KVC_CPU_ISA_AVX2
	ISAAVX512     ISA = C.KVC_CPU_ISA_AVX512
	ISAAVX512BF16 ISA = C.KVC_CPU_ISA_AVX512_BF16
)

func (isa ISA) String() string {
	names := [...]string{"auto", "reference", "scalar", "avx2", "avx512", "avx512_bf16"}
	if isa < 0 || int(isa) >= len(names) {
		return "unknown"
	}
	return names[isa]
}

// Bits of DeviceCaps.DTypes.
const (
	DTypeF32  uint64 = C.KVC_DTYPE_F32
	DTypeF16  uint64 = C.KVC_DTYPE_F16
	DTypeBF16 uint64 = C.KVC_DTYPE_BF16
	// From here on with a Quant.
	DTypeF8E4M3 uint64 = C.KVC_DTYPE_F8_E4M3
	DTypeF8E5M2 uint64 = C.KVC_DTYPE_F8_E5M2
	DTypeInt8   uint64 = C.KVC_DTYPE_INT8
	DTypeInt4   uint64 = C.KVC_DTYPE_INT4
	DTypeF4E2M1 uint64 = C.KVC_DTYPE_F4_E2M1
)

// DeviceCaps is what the library can do on a device.
type DeviceCaps struct {
	BackendPresent  bool
	Arch            int32 // CPU: best ISA of the machine; CUDA: 10 * compute capability; 0: unknown
	NumCores        int32
	PageGranularity int32  // bytes of a memory page, 0: unknown
	DTypes          uint64 // DTypeF32, ...
	ISAs            uint64 // CPU: bit i set: ISA i can be chosen
	MemoryBytes     uint64
	MemoryFreeBytes uint64
	Name            string
}

// Has tells whether an instruction set can be chosen.
func (c *DeviceCaps) Has(isa ISA) bool { return isa >= 0 && isa < 64 && c.ISAs>>uint(isa)&1 == 1 }

// DeviceQuery tells what the library can do on a device. A device without a back end in this build is no
// error.
func (l *Library) DeviceQuery(device Device) (*DeviceCaps, error) {
	var caps C.kvc_device_caps
	if err := failure(C.shim_device_query(l.api, device.c(), &caps)); err != nil {
		return nil, err
	}
	return &DeviceCaps{
		BackendPresent:  caps.backend_present != 0,
		Arch:            int32(caps.arch),
		NumCores:        int32(caps.num_cores),
		PageGranularity: int32(caps.page_granularity),
		DTypes:          uint64(caps.dtypes),
		ISAs:            uint64(caps.isas),
		MemoryBytes:     uint64(caps.memory_bytes),
		MemoryFreeBytes: uint64(caps.memory_free_bytes),
		Name:            C.GoString(&caps.name[0]),
	}, nil
}

// SetModulePath says where modules lie (libkvcache_cuda.so): an absolute directory; "": the library's own, as
// without this call. Once a module is loaded, only the same path is accepted.
func (l *Library) SetModulePath(path string) error {
	text, err := optionalText("path", path)
	if err != nil {
		return err
	}
	defer C.free(unsafe.Pointer(text))
	return failure(C.shim_module_path_set(l.api, text))
}

// LogLevel orders messages.
type LogLevel int32

// The levels of messages.
const (
	LogDebug   LogLevel = C.KVC_LOG_DEBUG
	LogInfo    LogLevel = C.KVC_LOG_INFO
	LogWarning LogLevel = C.KVC_LOG_WARNING
	LogError   LogLevel = C.KVC_LOG_ERROR
)

// SetLogger sends messages of at least the level to log; nil: silence, the initial state. log may be called
// from any thread, must not call the library and must not panic. The logger is one per process and library.
func (l *Library) SetLogger(log func(level LogLevel, message string), min LogLevel) error {
	var id uintptr
	if log != nil {
		id = callbacks.add(log)
	}
	// The one before stays registered: a thread may be inside of it.
	err := failure(C.shim_set_logger(l.api, C.uintptr_t(id), C.int32_t(min)))
	if err != nil && id != 0 {
		callbacks.remove(id)
	}
	return err
}
