//go:build kvcache_link

package kvcache

/*
#cgo pkg-config: kvcache
#include "shim.h"

static uintptr_t shim_linked(void) {
  const kvc_api *api = kvc_get_api(KVC_ABI_VERSION);
  return api == NULL || api->struct_size < sizeof(kvc_api) ? 0 : (uintptr_t)api;
}
static uint32_t shim_linked_version(void) { return kvc_abi_version(); }
*/
import "C"

import "fmt"

// Load gives the library that the program was linked with. A path is refused: it would be a second copy.
func Load(path string) (*Library, error) {
	if path != "" {
		return nil, invalid("path: %q, but the program was linked with libkvcache (build tag kvcache_link)", path)
	}
	api := C.shim_linked()
	if api == 0 {
		version := uint32(C.shim_linked_version())
		return nil, &Error{Status: ErrVersion,
			Msg: fmt.Sprintf("cannot use the linked library: its ABI version is %d.%d, needed is %d.%d",
				version>>16, version&0xFFFF, ABIVersion>>16, ABIVersion&0xFFFF)}
	}
	return &Library{api: api, path: "(linked)"}, nil
}
