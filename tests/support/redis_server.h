// A redis-server of a test's own, on a free port of the loopback, in a folder that goes with it.
#pragma once

#include <arpa/inet.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/folder.h"

namespace kvc::test {

// A port that nobody listens on now.
inline int free_port() {
  const int socket_fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  int port = 0;
  if (::bind(socket_fd, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
      ::getsockname(socket_fd, reinterpret_cast<sockaddr*>(&address), &size) == 0)
    port = ntohs(address.sin_port);
  ::close(socket_fd);
  // A node of a cluster listens 10,000 above too.
  return port > 55000 ? port - 20000 : port;
}

class RedisServer {
 public:
  static bool is_installed() {
    return std::system("command -v redis-server redis-cli > /dev/null 2>&1") == 0;
  }

  explicit RedisServer(std::vector<std::string> settings = {})
      : settings_(std::move(settings)), port_(free_port()) {
    start();
  }
  ~RedisServer() { stop(); }
  RedisServer(const RedisServer&) = delete;
  RedisServer& operator=(const RedisServer&) = delete;

  int port() const { return port_; }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  void start() {
    const std::string port = std::to_string(port_);
    std::vector<const char*> arguments{"redis-server",
                                       "--port",
                                       port.c_str(),
                                       "--bind",
                                       "127.0.0.1",
                                       "--save",
                                       "",
                                       "--dir",
                                       folder_.path().c_str(),
                                       "--logfile",
                                       "log"};
    for (const std::string& setting : settings_) arguments.push_back(setting.c_str());
    arguments.push_back(nullptr);
    pid_ = fork();
    if (pid_ == 0) {
      execvp(arguments[0], const_cast<char* const*>(arguments.data()));
      _exit(127);
    }
    for (int i = 0; i < 400 && ask("ping").empty(); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(25));
  }
  void stop() {
    if (pid_ <= 0) return;
    send(SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  void send(int signal) const { kill(pid_, signal); }

  // What redis-cli prints; empty: it has failed.
  std::string ask(const std::string& command) const {
    const std::string line =
        "timeout 5 redis-cli -p " + std::to_string(port_) + " " + command + " 2>/dev/null";
    std::string out;
    FILE* pipe = popen(line.c_str(), "r");
    if (pipe == nullptr) return out;
    char buffer[4096];
    for (size_t n; (n = fread(buffer, 1, sizeof buffer, pipe)) > 0;) out.append(buffer, n);
    return pclose(pipe) == 0 ? out : std::string();
  }

 private:
  Folder folder_;
  std::vector<std::string> settings_;
  int port_;
  pid_t pid_ = 0;
};

}  // namespace kvc::test
