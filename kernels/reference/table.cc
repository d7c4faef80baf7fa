// The reference as a kernel table, so that a whole cache can run on it.
#include "kernels/cpu/tables.h"
#include "kernels/reference/reference.h"

namespace kvc::kernels::cpu {

const KernelTable kReferenceTable = {
    Isa::kReference,
    "reference",
    reference::attention,
    reference::attention_scratch_bytes,
    reference::attention,
    reference::attention_scratch_bytes,
    reference::merge_splits,
    reference::append,
    reference::gather,
    reference::merge,
    reference::copy,
    reference::linear,
    reference::linear_scratch_bytes,
    reference::conv,
    reference::conv_scratch_bytes,
    nullptr,
};

}  // namespace kvc::kernels::cpu
