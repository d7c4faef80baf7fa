// Every function of the library, called wrongly by somebody who does not want to know why: `err` is
// NULL, and each other argument in turn is nothing at all. The list of functions is made from
// tests/abi/symbols.txt, so none can be forgotten.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <set>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "kvcache_api.h"

namespace kvc::test {
namespace {

// Objects that are fine, for the arguments that are not left out.
class World {
 public:
  World() {
    layer_.struct_size = sizeof layer_;
    layer_.num_kv_heads = 1;
    layer_.k_dim = 2;
    layer_.k_dtype = {kDLFloat, 32, 1};
    config_.struct_size = sizeof config_;
    config_.num_layers = 1;
    config_.layers = &layer_;
    config_.page_size = 4;
    config_.num_pages = 8;
    config_.num_threads = 1;
    config_.host_byte_budget = 4096;
    config_.event_capacity = 8;
    EXPECT_EQ(kvc_plan_create(&config_, &plan_, nullptr), KVC_OK);
    for (kvc_cache** cache : {&cache_, &open_}) {
      EXPECT_EQ(kvc_cache_create(plan_, cache, nullptr), KVC_OK);
      EXPECT_EQ(kvc_seq_add(*cache, 1, nullptr), KVC_OK);
    }
    kvc_forward_desc desc = description();
    EXPECT_EQ(kvc_forward_begin(open_, &desc, &fwd_, nullptr), KVC_OK);
    kvc_transport_desc here{};
    here.struct_size = sizeof here;
    here.flags = KVC_TRANSPORT_MANUAL_PROGRESS;
    EXPECT_EQ(kvc_transport_open(&here, &transport_, nullptr), KVC_OK);
  }
  ~World() {
    kvc_transfer_destroy(made_transfer_);
    kvc_transport_destroy(made_transport_);
    kvc_transport_destroy(transport_);
    if (made_forward_ != nullptr) (void)kvc_forward_abort(made_forward_, nullptr);
    kvc_plan_destroy(made_plan_);
    kvc_cache_destroy(made_cache_);
    kvc_fence_destroy(made_fence_);
    if (made_export_ != nullptr) made_export_->deleter(made_export_);
    kvc_cache_destroy(cache_);
    kvc_cache_destroy(open_);
    kvc_plan_destroy(plan_);
  }
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  // What a caller sees of both caches.
  auto look() const {
    const auto one = [](const kvc_cache* cache) {
      kvc_stats stats{};
      stats.struct_size = sizeof stats;
      EXPECT_EQ(kvc_cache_stats_get(cache, &stats, nullptr), KVC_OK);
      EXPECT_EQ(kvc_cache_check(cache, nullptr), KVC_OK);
      stats.no_pages = 0;
      return std::string(reinterpret_cast<const char*>(&stats), sizeof stats);
    };
    return std::pair(one(cache_), one(open_));
  }

  // The argument of a type. Numbers are small, structs are empty but for their size, arrays have
  // room.
  template <typename T>
  T make() {
    if constexpr (std::is_same_v<T, kvc_cache*> || std::is_same_v<T, const kvc_cache*>) {
      return cache_;
    } else if constexpr (std::is_same_v<T, kvc_plan*> || std::is_same_v<T, const kvc_plan*>) {
      return plan_;
    } else if constexpr (std::is_same_v<T, kvc_forward*> || std::is_same_v<T, const kvc_forward*>) {
      return fwd_;
    } else if constexpr (std::is_same_v<T, kvc_transport*> ||
                         std::is_same_v<T, const kvc_transport*>) {
      return transport_;
    } else if constexpr (std::is_same_v<T, kvc_transport**>) {
      return &made_transport_;
    } else if constexpr (std::is_same_v<T, kvc_transfer**>) {
      return &made_transfer_;
    } else if constexpr (std::is_same_v<T, kvc_plan**>) {
      return &made_plan_;
    } else if constexpr (std::is_same_v<T, kvc_cache**>) {
      return &made_cache_;
    } else if constexpr (std::is_same_v<T, kvc_forward**>) {
      return &made_forward_;
    } else if constexpr (std::is_same_v<T, kvc_fence**>) {
      return &made_fence_;
    } else if constexpr (std::is_same_v<T, DLManagedTensorVersioned**>) {
      return &made_export_;
    } else if constexpr (std::is_same_v<T, const kvc_config*>) {
      return &config_;
    } else if constexpr (std::is_same_v<T, kvc_config*>) {
      return new (room()) kvc_config(config_);
    } else if constexpr (std::is_same_v<T, const kvc_forward_desc*>) {
      return new (room()) kvc_forward_desc(description());
    } else if constexpr (std::is_same_v<T, const DLTensor*> || std::is_same_v<T, DLTensor*>) {
      return &tensor_;
    } else if constexpr (std::is_same_v<T, const kvc_plan* const*>) {
      return &constant_plan_;
    } else if constexpr (std::is_same_v<T, const kvc_seq*>) {
      return &seq_;
    } else if constexpr (std::is_same_v<T, size_t*>) {
      count_ = 1;
      return &count_;
    } else if constexpr (std::is_same_v<T, const char*>) {
      return "cpu";
    } else if constexpr (std::is_pointer_v<T>) {
      using Object = std::remove_const_t<std::remove_pointer_t<T>>;
      unsigned char* memory = room();
      if constexpr (std::is_class_v<Object>) {
        const size_t size = sizeof_or_zero<Object>();
        std::memcpy(memory, &size, sizeof size);
        // A struct that this test cannot make stays NULL.
        if (size == 0) return nullptr;
      }
      if constexpr (std::is_function_v<Object>) {
        return nullptr;
      } else {
        return reinterpret_cast<T>(memory);
      }
    } else if constexpr (std::is_arithmetic_v<T>) {
      return T{1};
    } else {
      return T{};
    }
  }

 private:
  template <typename Object>
  static constexpr size_t sizeof_or_zero() {
    if constexpr (requires { sizeof(Object); }) {
      return sizeof(Object);
    } else {
      return 0;
    }
  }
  kvc_forward_desc description() const {
    kvc_forward_desc desc{};
    desc.struct_size = sizeof desc;
    desc.num_seqs = 1;
    desc.seqs = &seq_;
    desc.append_lengths = &one_;
    return desc;
  }
  unsigned char* room() {
    unsigned char* memory = rooms_[next_room_++ % rooms_.size()].data();
    std::memset(memory, 0, rooms_[0].size());
    return memory;
  }

  kvc_layer layer_{};
  kvc_config config_{};
  kvc_plan* plan_ = nullptr;
  const kvc_plan* const& constant_plan_ = plan_;
  kvc_cache *cache_ = nullptr, *open_ = nullptr;
  kvc_forward* fwd_ = nullptr;
  kvc_seq seq_ = 1;
  int64_t one_ = 1;
  size_t count_ = 1;
  float element_ = 0;
  int64_t shape_ = 1;
  DLTensor tensor_{&element_, {kDLCPU, 0}, 1, {kDLFloat, 32, 1}, &shape_, nullptr, 0};
  kvc_transport *transport_ = nullptr, *made_transport_ = nullptr;
  kvc_transfer* made_transfer_ = nullptr;
  kvc_plan* made_plan_ = nullptr;
  kvc_cache* made_cache_ = nullptr;
  kvc_forward* made_forward_ = nullptr;
  kvc_fence* made_fence_ = nullptr;
  DLManagedTensorVersioned* made_export_ = nullptr;
  alignas(16) std::array<std::array<unsigned char, 8192>, 12> rooms_{};
  size_t next_room_ = 0;
};

// Functions that end what they are given: only nothing is wrong enough to be given here.
template <typename Result, typename First>
constexpr bool ends_its_argument() {
  return std::is_void_v<Result> && std::is_pointer_v<First>;
}

// Calls `function` once for every choice of which pointers are NULL; `err` always is.
template <typename Result, typename... Args>
void call_wrongly(const char* name, Result (*function)(Args...) noexcept) {
  constexpr size_t kCount = sizeof...(Args);
  constexpr std::array<bool, kCount + 1> kIsPointer = {std::is_pointer_v<Args>..., false};
  size_t pointers = 0;
  for (size_t i = 0; i < kCount; ++i) pointers += kIsPointer[i] ? 1 : 0;
  for (size_t nulls = 0; nulls < size_t{1} << pointers; ++nulls) {
    World world;
    const auto before = world.look();
    size_t pointer = 0;
    [[maybe_unused]] const auto argument = [&]<typename T>() -> T {
      if constexpr (std::is_same_v<T, kvc_error*>) {
        ++pointer;
        return nullptr;
      } else if constexpr (std::is_pointer_v<T>) {
        const bool is_null = (nulls >> pointer++ & 1) != 0;
        return is_null ? nullptr : world.make<T>();
      } else {
        return world.make<T>();
      }
    };
    const std::tuple<Args...> arguments{argument.template operator()<Args>()...};
    if constexpr (kCount > 0) {
      using First = std::tuple_element_t<0, std::tuple<Args..., int>>;
      if constexpr (ends_its_argument<Result, First>()) {
        if (std::get<0>(arguments) != nullptr) continue;
      }
    }
    if constexpr (std::is_same_v<Result, kvc_status>) {
      const kvc_status status = std::apply(function, arguments);
      EXPECT_GE(status, KVC_OK) << name << ", NULL arguments " << nulls;
      EXPECT_LT(status, KVC_E_INTERNAL) << name << ", NULL arguments " << nulls;
      // Every exported status has a name; a refused call changes nothing.
      if (status != KVC_OK) {
        EXPECT_EQ(world.look(), before) << name << ", NULL arguments " << nulls;
      }
    } else {
      (void)std::apply(function, arguments);
    }
  }
}

// What accepts that all its pointers are NULL, as the header says, and questions whose answer to
// that is 0.
bool may_be_given_nothing(const std::string& name) {
  static const std::set<std::string> kNames = {"kvc_forward_abort", "kvc_set_logger",
                                               "kvc_module_path_set", "kvc_cache_is_empty",
                                               "kvc_has_feature"};
  return kNames.count(name) != 0;
}

template <typename Result, typename... Args>
void call_with_nothing(const char* name, Result (*function)(Args...) noexcept) {
  if constexpr (std::is_same_v<Result, kvc_status>) {
    const kvc_status status = function(Args{}...);
    if (!may_be_given_nothing(name)) {
      EXPECT_NE(status, KVC_OK) << name << " accepts nothing at all";
    }
  } else {
    (void)function(Args{}...);
  }
}

TEST(NullError, EveryFunctionRefusesNothingAtAllWithoutSayingWhy) {
#define KVC_FUNCTION(name) call_with_nothing(#name, &name);
#include "null_error_functions.inc"
#undef KVC_FUNCTION
}

TEST(NullError, EveryFunctionSurvivesAnyOfItsPointersMissing) {
#define KVC_FUNCTION(name) call_wrongly(#name, &name);
#include "null_error_functions.inc"
#undef KVC_FUNCTION
}

}  // namespace
}  // namespace kvc::test
