// A file that is saved over: who may read it, where links lead, and what is no regular file.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "src/base/error.h"
#include "src/files/byte_sink.h"
#include "tests/support/folder.h"

namespace kvc {
namespace {

using test::Folder;

void put(const std::string& path, const std::string& text) {
  FileSink sink(path.c_str());
  sink.write(text.data(), text.size());
  sink.finish();
}

std::string content_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

struct stat status_of(const std::string& path) {
  struct stat status {};
  EXPECT_EQ(::lstat(path.c_str(), &status), 0) << path;
  return status;
}

int mode_of(const std::string& path) { return static_cast<int>(status_of(path).st_mode & 07777); }

// The error that saving there gives; fails the test where there is none.
Error refused(const std::string& path) {
  try {
    put(path, "new");
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << path << " was written";
  return {KVC_OK, 0};
}

TEST(FileSink, ANewFileIsItsUsersAlone) {
  const Folder folder;
  const mode_t before = ::umask(0);
  put(folder.file("new"), "a");
  ::umask(before);
  EXPECT_EQ(mode_of(folder.file("new")), 0600);
}

TEST(FileSink, AFileThatIsReplacedKeepsItsModeAndOwner) {
  const Folder folder;
  const std::string path = folder.file("old");
  put(path, "first");
  ASSERT_EQ(::chmod(path.c_str(), 0640), 0);
  const bool is_root = ::geteuid() == 0;
  if (is_root) {
    ASSERT_EQ(::chown(path.c_str(), 12345, 54321), 0);
  }
  put(path, "second");
  EXPECT_EQ(content_of(path), "second");
  EXPECT_EQ(mode_of(path), 0640);
  EXPECT_EQ(status_of(path).st_uid, is_root ? 12345 : ::geteuid());
  if (is_root) {
    EXPECT_EQ(status_of(path).st_gid, 54321u);
  }
  EXPECT_EQ(folder.size(), 1u) << "nothing lies beside it";
}

TEST(FileSink, AFileOfSomebodyElseIsRefusedWhereItsOwnerCannotBeKept) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to make the file of somebody else";
  const Folder folder;
  ASSERT_EQ(::chmod(folder.path().c_str(), 0777), 0);
  const std::string path = folder.file("theirs");
  put(path, "first");
  // This thread becomes a user who may replace the file and cannot give it away.
  ASSERT_EQ(::setegid(4321), 0);
  ASSERT_EQ(::seteuid(1234), 0);
  const Error error = refused(path);
  ASSERT_EQ(::seteuid(0), 0);
  ASSERT_EQ(::setegid(0), 0);
  EXPECT_EQ(error.status(), KVC_E_IO);
  EXPECT_EQ(error.sys_code(), EPERM);
  EXPECT_NE(std::string(error.what()).find("keep its owner 0:0"), std::string::npos)
      << error.what();
  EXPECT_EQ(content_of(path), "first");
  EXPECT_EQ(folder.size(), 1u);
}

TEST(FileSink, ALinkIsFollowedAlsoToAFileThatIsNotThereYet) {
  const Folder folder, other;
  const std::string target = other.file("target");
  std::filesystem::create_symlink(target, folder.file("one"));
  std::filesystem::create_symlink("one", folder.file("two"));
  put(folder.file("two"), "first");
  EXPECT_EQ(content_of(target), "first");
  put(folder.file("two"), "second");
  EXPECT_EQ(content_of(target), "second");
  for (const char* link : {"one", "two"})
    EXPECT_TRUE(std::filesystem::is_symlink(folder.file(link))) << link;
  EXPECT_EQ(folder.size(), 2u);
  EXPECT_EQ(other.size(), 1u);
}

TEST(FileSink, LinksInACircleAreRefused) {
  const Folder folder;
  std::filesystem::create_symlink("two", folder.file("one"));
  std::filesystem::create_symlink("one", folder.file("two"));
  EXPECT_EQ(refused(folder.file("one")).sys_code(), ELOOP);
  EXPECT_EQ(folder.size(), 2u);
}

TEST(FileSink, NamesAreAsLongAsTheFileSystemHasThem) {
  const Folder folder;
  for (const size_t length : {size_t{200}, size_t{241}, size_t{255}}) {
    const std::string path = folder.path() + "/" + std::string(length, 'n');
    put(path, "a");
    put(path, "b");
    EXPECT_EQ(content_of(path), "b") << length;
  }
  EXPECT_EQ(refused(folder.path() + "/" + std::string(256, 'n')).sys_code(), ENAMETOOLONG);
}

TEST(FileSink, AFifoIsWrittenAndStaysOne) {
  const Folder folder;
  const std::string path = folder.file("fifo");
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_EQ(refused(path).sys_code(), ENXIO) << "nobody reads it, and nothing waits";
  std::string got;
  const int reader = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  ASSERT_GE(reader, 0);
  ASSERT_EQ(::fcntl(reader, F_SETFL, 0), 0);
  // More than a pipe holds.
  const std::string text(300000, 'x');
  std::thread reading([&] {
    char part[4096];
    // 0 also says that nobody writes yet.
    for (ssize_t size;
         (size = ::read(reader, part, sizeof part)) > 0 || (size == 0 && got.empty());)
      got.append(part, static_cast<size_t>(size));
  });
  put(path, text);
  reading.join();
  ::close(reader);
  EXPECT_EQ(got, text);
  EXPECT_TRUE(S_ISFIFO(status_of(path).st_mode));
  EXPECT_EQ(folder.size(), 1u);
}

TEST(FileSink, AReaderThatGoesAwayIsAnErrorAndNoSignal) {
  const Folder folder;
  const std::string path = folder.file("fifo");
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  const int reader = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  ASSERT_GE(reader, 0);
  FileSink sink(path.c_str());
  ::close(reader);
  try {
    sink.write("a", 1);
    ADD_FAILURE() << "written";
  } catch (const Error& error) {
    EXPECT_EQ(error.sys_code(), EPIPE);
  }
  sigset_t pending;
  ASSERT_EQ(sigpending(&pending), 0);
  EXPECT_EQ(sigismember(&pending, SIGPIPE), 0);
}

TEST(FileSink, ADeviceIsWrittenAndStaysOne) {
  const Folder folder;
  const std::string path = folder.file("null");
  // The device that swallows what is written, under a name of this folder's own.
  if (::mknod(path.c_str(), S_IFCHR | 0666, makedev(1, 3)) != 0)
    GTEST_SKIP() << "a device node needs a right that this process lacks";
  const int opened = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (opened < 0) GTEST_SKIP() << "this file system has no devices";
  ::close(opened);
  put(path, "gone");
  EXPECT_TRUE(S_ISCHR(status_of(path).st_mode));
  EXPECT_EQ(folder.size(), 1u);
}

TEST(FileSink, AFolderIsRefused) {
  const Folder folder;
  EXPECT_EQ(refused(folder.path()).sys_code(), EISDIR);
  EXPECT_EQ(folder.size(), 0u);
}

}  // namespace
}  // namespace kvc
