// A file system for RocksDB that reads large values, and writes tables, past the page cache, from
// and to memory on huge pages.
//
// A value of 1 MiB on small pages is 256 segments for the disk, more than a virtio disk takes in
// one request; on a huge page it is one. RocksDB's own direct I/O uses small pages, and waits for
// each write.
#pragma once

#include <rocksdb/file_system.h>
#include <rocksdb/memory_allocator.h>

#include <memory>

namespace kvc {

// Memory for values that RocksDB reads, likewise: freed memory of this size would go back to the
// system, and come back page by page.
std::shared_ptr<rocksdb::MemoryAllocator> value_memory();

std::shared_ptr<rocksdb::FileSystem> direct_files(std::shared_ptr<rocksdb::FileSystem> base);

}  // namespace kvc
