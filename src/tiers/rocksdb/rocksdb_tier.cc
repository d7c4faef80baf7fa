// libkvcache_tier_rocksdb.so: a tier in files. RocksDB in FIFO mode is a bounded cache by
// construction: tables are written once and dropped whole, the oldest first.
//
// A block is two entries, 'h' and 'v' before its key: its head, and the whole value. They are
// written together, so they lie in one table, where all heads lie close to each other.
//
// Few blocks go through RocksDB's write buffer. Many at once become a table of their own, from
// where they lie: two copies instead of four.
#include <errno.h>
#include <rocksdb/cache.h>
#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/filter_policy.h>
#include <rocksdb/options.h>
#include <rocksdb/sst_file_writer.h>
#include <rocksdb/table.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <exception>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "src/base/thread.h"
#include "src/tiers/rocksdb/direct_files.h"
#include "src/tiers/tier.h"

namespace kvc {
namespace {

namespace fs = std::filesystem;

// A folder of its own below the user's: what is moved aside is only what this module has made.
constexpr char kFolder[] = "/kvcache-tier-1";
constexpr uint64_t kMebibyte = uint64_t{1} << 20;

class NoLog final : public rocksdb::Logger {
 public:
  using Logger::Logv;
  void Logv(const char*, va_list) override {}
};

class RocksDbTier final : public Tier {
 public:
  RocksDbTier(std::unique_ptr<rocksdb::Env> env, std::unique_ptr<rocksdb::DB> db,
              std::string incoming)
      : env_(std::move(env)),
        db_(std::move(db)),
        incoming_(std::move(incoming)),
        least_table_(db_->GetOptions().write_buffer_size / 4) {
    read_values_.verify_checksums = false;  // The cache verifies a digest of its own.
    read_values_.fill_cache = false;
    write_.disableWAL = true;
  }
  ~RocksDbTier() override {
    (void)db_->Flush({});
    (void)db_->Close();
  }

  void put(std::span<TierPut> puts, TierFailure* failure) noexcept override {
    for (TierPut& put : puts) put.result = TierResult::kFailed;
    try {
      if (needs_resume_.exchange(false)) (void)db_->Resume();
      std::vector<TierPut*> missing;
      size_t bytes = 0;
      for (TierPut& put : puts) {
        if (!put.replaces && has(put.key)) {
          put.result = TierResult::kOk;
          continue;
        }
        missing.push_back(&put);
        bytes += put.size;
      }
      if (bytes >= least_table_) {
        put_table(std::move(missing), failure);
      } else {
        for (TierPut* put : missing) put_one(*put, failure);
      }
    } catch (const std::exception& error) {
      failure->set("%s", error.what());
    }
  }

  void get(std::span<TierGet> gets, TierTime deadline, TierFailure* failure) noexcept override {
    for (TierGet& get : gets) get.result = TierResult::kTimeout;
    try {
      for (TierGet& get : gets) {
        if (std::chrono::steady_clock::now() >= deadline) {
          failure->set("reading took too long");
          return;
        }
        get_one(get, failure);
      }
    } catch (const std::exception& error) {
      failure->set("%s", error.what());
    }
  }

  TierResult find(std::span<const TierKey> keys, size_t head_bytes, std::byte* heads, size_t* found,
                  TierTime deadline, TierFailure* failure) noexcept override {
    *found = 0;
    if (std::chrono::steady_clock::now() >= deadline) {
      failure->set("a lookup took too long");
      return TierResult::kTimeout;
    }
    try {
      // Together: every table is asked for all keys at once.
      std::vector<Key> names;
      for (const TierKey& key : keys) names.emplace_back('h', key);
      std::vector<rocksdb::Slice> slices;
      for (const Key& name : names) slices.push_back(name.slice());
      std::vector<rocksdb::PinnableSlice> found_heads(keys.size());
      std::vector<rocksdb::Status> statuses(keys.size());
      db_->MultiGet({}, db_->DefaultColumnFamily(), slices.size(), slices.data(),
                    found_heads.data(), statuses.data());
      for (size_t i = 0; i < keys.size(); ++i) {
        if (statuses[i].IsNotFound() || (statuses[i].ok() && found_heads[i].size() != head_bytes))
          break;
        if (!statuses[i].ok()) {
          note(statuses[i], failure);
          return TierResult::kFailed;
        }
        std::memcpy(heads + i * head_bytes, found_heads[i].data(), head_bytes);
        ++*found;
      }
    } catch (const std::exception& error) {
      failure->set("%s", error.what());
      return TierResult::kFailed;
    }
    return TierResult::kOk;
  }

  uint64_t stored_bytes() noexcept override {
    uint64_t files = 0, memory = 0;
    (void)db_->GetIntProperty(rocksdb::DB::Properties::kTotalSstFilesSize, &files);
    (void)db_->GetIntProperty(rocksdb::DB::Properties::kCurSizeAllMemTables, &memory);
    return files + memory;
  }

 private:
  struct Key {
    Key(char kind, const TierKey& key) {
      bytes[0] = kind;
      std::memcpy(bytes + 1, key.data(), key.size());
    }
    rocksdb::Slice slice() const { return {bytes, sizeof bytes}; }
    char bytes[1 + KVC_HASH_BYTES];
  };

  static rocksdb::Slice slice(const std::byte* data, size_t size) {
    return {reinterpret_cast<const char*>(data), size};
  }
  static void note(const rocksdb::Status& status, TierFailure* failure) {
    failure->set("%s", status.ToString().c_str());
  }

  // The head is as long as what lies before the payload, which its own field names.
  static rocksdb::Slice head_of(const TierPut& put) {
    uint64_t payload_bytes = 0;
    std::memcpy(&payload_bytes, put.data + 8, sizeof payload_bytes);
    return slice(put.data, put.size - static_cast<size_t>(payload_bytes));
  }
  bool has(const TierKey& key) {
    rocksdb::PinnableSlice head;
    return db_->Get({}, db_->DefaultColumnFamily(), Key('h', key).slice(), &head).ok();
  }

  void put_one(TierPut& put, TierFailure* failure) {
    rocksdb::WriteBatch batch(put.size + 4096);
    rocksdb::Status status = batch.Put(Key('h', put.key).slice(), head_of(put));
    if (status.ok()) status = batch.Put(Key('v', put.key).slice(), slice(put.data, put.size));
    if (status.ok()) status = db_->Write(write_, &batch);
    if (status.ok()) {
      put.result = TierResult::kOk;
      return;
    }
    note(status, failure);
    needs_resume_ = true;  // After a full disk, say: RocksDB refuses writes until it is told.
  }

  // All in one table, or none.
  void put_table(std::vector<TierPut*> puts, TierFailure* failure) {
    std::stable_sort(puts.begin(), puts.end(),
                     [](const TierPut* a, const TierPut* b) { return a->key < b->key; });
    // Of two values of a key the later one counts.
    std::vector<TierPut*> last;
    for (TierPut* put : puts) {
      if (!last.empty() && last.back()->key == put->key) last.pop_back();
      last.push_back(put);
    }
    const std::string file = incoming_ + "/" + std::to_string(num_tables_++) + ".sst";
    rocksdb::Status status = write_table(file, last);
    if (status.ok()) {
      rocksdb::IngestExternalFileOptions ingest;
      ingest.move_files = true;
      ingest.write_global_seqno = false;
      status = db_->IngestExternalFile({file}, ingest);
    }
    if (!status.ok()) {
      std::error_code ignored;
      fs::remove(file, ignored);
      note(status, failure);
      needs_resume_ = true;
      return;
    }
    for (TierPut* put : puts) put->result = TierResult::kOk;
  }

  rocksdb::Status write_table(const std::string& file, const std::vector<TierPut*>& puts) {
    const rocksdb::Options options = db_->GetOptions();
    rocksdb::SstFileWriter writer(rocksdb::EnvOptions(options), options);
    rocksdb::Status status = writer.Open(file);
    for (const TierPut* put : puts) {
      if (status.ok()) status = writer.Put(Key('h', put->key).slice(), head_of(*put));
    }
    for (const TierPut* put : puts) {
      if (status.ok()) status = writer.Put(Key('v', put->key).slice(), slice(put->data, put->size));
    }
    return status.ok() ? writer.Finish() : status;
  }

  void get_one(TierGet& get, TierFailure* failure) {
    rocksdb::PinnableSlice value;
    const rocksdb::Status status =
        db_->Get(read_values_, db_->DefaultColumnFamily(), Key('v', get.key).slice(), &value);
    if (status.ok() && value.size() == get.size) {
      std::memcpy(get.data, value.data(), value.size());
      get.result = TierResult::kOk;
    } else if (status.ok() || status.IsNotFound()) {
      get.result = TierResult::kMiss;
    } else {
      get.result = TierResult::kFailed;
      note(status, failure);
    }
  }

  const std::unique_ptr<rocksdb::Env> env_;  // Outlives the database.
  const std::unique_ptr<rocksdb::DB> db_;
  const std::string incoming_;  // Folder of tables that the database does not have yet.
  const size_t least_table_;    // Bytes.
  std::atomic<uint64_t> num_tables_{0};
  rocksdb::ReadOptions read_values_;
  rocksdb::WriteOptions write_;
  std::atomic<bool> needs_resume_{false};
};

rocksdb::Options options_for(const TierConfig& config, rocksdb::Env* env) {
  rocksdb::Options options;
  options.env = env;
  options.create_if_missing = true;
  options.info_log = std::make_shared<NoLog>();
  options.compression = rocksdb::kNoCompression;  // KV does not compress.
  options.compaction_style = rocksdb::kCompactionStyleFIFO;
  // A table beyond the limit is dropped after it was written: two are left room for.
  options.write_buffer_size = std::clamp(config.byte_limit / 16, kMebibyte, 64 * kMebibyte);
  options.max_write_buffer_number = 3;
  options.compaction_options_fifo.max_table_files_size =
      config.byte_limit - 2 * options.write_buffer_size;
  options.level0_slowdown_writes_trigger = options.level0_stop_writes_trigger = 1 << 30;
  options.max_background_jobs = 2;
  options.skip_stats_update_on_db_open = true;
  options.stats_dump_period_sec = options.stats_persist_period_sec = 0;
  rocksdb::BlockBasedTableOptions table;
  table.filter_policy.reset(rocksdb::NewBloomFilterPolicy(10));
  table.block_cache = rocksdb::NewLRUCache(32 * kMebibyte, -1, false, 0.0, value_memory());
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  return options;
}

// Blocks hold what users wrote: nobody else reads them. A folder that is there stays as it is.
std::error_code make_private_folder(const std::string& path) {
  if (::mkdir(path.c_str(), 0700) == 0 || errno == EEXIST) return {};
  return {errno, std::generic_category()};
}

rocksdb::Status open_once(const rocksdb::Options& options, const std::string& folder,
                          std::unique_ptr<rocksdb::DB>* db) {
  rocksdb::DB* opened = nullptr;
  const SignalsBlocked blocked;  // RocksDB starts threads.
  const rocksdb::Status status = rocksdb::DB::Open(options, folder, &opened);
  db->reset(opened);
  return status;
}

bool is_damage(const rocksdb::Status& status) {
  // A table that is missing or too short is an I/O error to RocksDB.
  return status.IsCorruption() || status.IsPathNotFound() ||
         (status.IsIOError() && status.ToString().find("LOCK") == std::string::npos &&
          !status.IsNoSpace());
}

// Opens what is there, or as much of it as can be read, or an empty store in its place.
rocksdb::Status open_ladder(const TierConfig& config, const rocksdb::Options& options,
                            const std::string& folder, std::unique_ptr<rocksdb::DB>* db) {
  rocksdb::Status status = open_once(options, folder, db);
  if (status.ok() || !is_damage(status)) return status;
  config.log(KVC_LOG_WARNING, "file tier: \"%s\" is damaged, recovering what can be read: %s",
             folder.c_str(), status.ToString().c_str());
  rocksdb::Options lenient = options;
  lenient.paranoid_checks = false;
  lenient.best_efforts_recovery = true;
  if (open_once(lenient, folder, db).ok()) return rocksdb::Status::OK();
  const std::string aside = folder + ".damaged-" + std::to_string(std::time(nullptr));
  std::error_code error;
  fs::rename(folder, aside, error);
  if (error) return status;
  config.log(KVC_LOG_WARNING, "file tier: moved to \"%s\", starting empty", aside.c_str());
  return open_once(options, folder, db);
}

Tier* open_tier(const TierConfig& config, TierFailure* failure) {
  if (config.byte_limit < 4 * kMebibyte || config.byte_limit / 4 < config.value_bytes) {
    failure->status = KVC_E_INVALID_ARGUMENT;
    failure->set("byte_limit = %llu, expected at least 4 MiB and 4 blocks of %llu bytes",
                 static_cast<unsigned long long>(config.byte_limit),
                 static_cast<unsigned long long>(config.value_bytes));
    return nullptr;
  }
  try {
    const std::string folder = std::string(config.address) + kFolder;
    const std::string incoming = folder + ".incoming";
    std::error_code error;
    fs::create_directories(config.address, error);
    if (!error) error = make_private_folder(folder);
    if (error) {
      failure->sys_code = error.value();
      failure->set("the folder cannot be made: %s", error.message().c_str());
      return nullptr;
    }
    auto env = rocksdb::NewCompositeEnv(direct_files(rocksdb::FileSystem::Default()));
    std::unique_ptr<rocksdb::DB> db;
    const rocksdb::Status status = open_ladder(config, options_for(config, env.get()), folder, &db);
    if (!status.ok()) {
      const bool is_locked = status.ToString().find("lock") != std::string::npos;
      failure->status = is_locked ? KVC_E_BUSY : KVC_E_IO;
      failure->sys_code = is_locked ? EAGAIN : EIO;
      failure->set("%s", status.ToString().c_str());
      return nullptr;
    }
    // The folder is this process's: what lies there was left by one that was killed.
    fs::remove_all(incoming, error);
    (void)make_private_folder(incoming);
    return new RocksDbTier(std::move(env), std::move(db), incoming);
  } catch (const std::exception& error) {
    failure->status = KVC_E_NO_MEMORY;
    failure->set("%s", error.what());
    return nullptr;
  }
}

constexpr TierModule kModule{{sizeof(TierModule), KVC_LIBRARY_VERSION}, open_tier};

}  // namespace
}  // namespace kvc

extern "C" __attribute__((visibility("default"))) const kvc::ModuleTable* kvc_tier_module();
extern "C" const kvc::ModuleTable* kvc_tier_module() { return &kvc::kModule.table; }
