// Sequences from and to other caches, of this process or another (kvc_transfer_*): what a transfer
// reads and writes here. How it travels, src/transfer knows.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kvcache.h"
#include "src/cache/cache_core.h"
#include "src/transfer/message.h"
#include "src/transfer/transport.h"

namespace kvc {

struct SequenceImage;
class CacheForward;
class CacheTransfers;
class ReceiveTransfer;
class SendTransfer;

// Between a cache and its transfers, which may outlive it.
struct TransferLink {
  CacheTransfers* owner =
      nullptr;                   // Null: the cache is gone. Calls on the cache exclude each other.
  std::atomic<int32_t> news{0};  // Transfers that have arrived or ended since the last settle().
};

struct ReceiveRequest {
  kvc_seq seq = 0;
  int64_t begin = 0;
  int64_t num_tokens = 0;
  int64_t cross_length = 0;
  bool publishes = false;
  int32_t priority = 0;
  std::string model_id;
  int64_t lifetime = 0, idle = 0;  // Nanoseconds, as Transport::receive().
  TransferRanks ranks;
};

struct SendRequest {
  kvc_seq seq = 0;
  int64_t begin = 0;
  bool as_computed = false;  // Rows leave as forwards write them, up to the ticket's length.
  std::string model_id;
  int64_t lifetime = 0, idle = 0;
  int32_t rank = 0, num_ranks = 1;  // Tensor-parallel.
};

class CacheTransfers final : private RowObserver {
 public:
  CacheTransfers(CacheCore& core, CacheForward& forward);
  // Ends all transfers; nothing is on its way afterwards.
  ~CacheTransfers() override;
  CacheTransfers(const CacheTransfers&) = delete;
  CacheTransfers& operator=(const CacheTransfers&) = delete;

  // Throws Error or std::bad_alloc; nothing has changed then.
  // One for each sender; all have the same ticket.
  std::vector<std::shared_ptr<Transfer>> receive(const std::shared_ptr<Transport>& transport,
                                                 const ReceiveRequest& request);
  std::shared_ptr<Transfer> send(const std::shared_ptr<Transport>& transport, const Ticket& ticket,
                                 const SendRequest& request);
  static std::vector<std::byte> ticket_of(const Transfer& transfer, const Transport& transport);

  bool has_news() const {
    return link_->news.load(std::memory_order_relaxed) != 0 || core_.observer != nullptr;
  }
  // Makes sequences of what has arrived, and frees what ended transfers held; nothing while a
  // forward is open. Throws std::bad_alloc; what was not done is done by a later call.
  void settle();
  void try_settle() noexcept;
  // BUSY while a transfer is open.
  void require_none(const char* action) const;
  const std::shared_ptr<TransferLink>& link() const { return link_; }

 private:
  struct Receiving;
  struct Sending;

  void reserve(const ReceiveRequest& request, bool is_new);
  void undo(kvc_seq id, std::unique_ptr<Sequence> before) noexcept;
  void take_state(Receiving& one, Sequence& sequence, const SequenceImage& image) noexcept;
  void commit(Receiving& one);
  bool settle_receiving(Receiving& one);
  void drop(HeldPages& held) noexcept;
  void on_rows(int32_t local_layer) noexcept override;
  void on_abort() noexcept override;
  void on_end() noexcept override;
  void check_followed() noexcept;
  bool is_followed(const Sending& one, const Sequence* sequence) const noexcept;
  void stop_following(Sending& one, const char* why) noexcept;
  void watch() noexcept;

  CacheCore& core_;
  CacheForward& forward_;
  std::shared_ptr<TransferLink> link_;
  std::vector<std::unique_ptr<Receiving>> receiving_;
  std::vector<std::unique_ptr<Sending>> sending_;
  uint64_t last_follow_ = 0;
};

}  // namespace kvc
