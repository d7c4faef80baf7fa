// A redis-server of a test's own, on a port of the loopback, in a folder that goes with it.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/folder.h"
#include "tests/support/waiting.h"

namespace kvc::test {

// A port that this object holds and that nobody listens on: connections to it are refused.
class RefusingPort {
 public:
  RefusingPort() : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in place{};
    place.sin_family = AF_INET;
    place.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof place;
    EXPECT_EQ(::bind(socket_, reinterpret_cast<sockaddr*>(&place), size), 0);
    EXPECT_EQ(::getsockname(socket_, reinterpret_cast<sockaddr*>(&place), &size), 0);
    address_ = "127.0.0.1:" + std::to_string(ntohs(place.sin_port));
  }
  ~RefusingPort() { ::close(socket_); }
  RefusingPort(const RefusingPort&) = delete;
  RefusingPort& operator=(const RefusingPort&) = delete;

  const std::string& address() const { return address_; }

 private:
  int socket_;
  std::string address_;
};

class RedisServer {
 public:
  static bool is_installed() {
    return std::system("command -v redis-server redis-cli > /dev/null 2>&1") == 0;
  }

  // On a port that it has bound itself: where another program has the port, the server ends, and
  // the next one tries another.
  explicit RedisServer(std::vector<std::string> settings = {}) : settings_(std::move(settings)) {
    std::random_device random;
    for (int i = 0; i < 50; ++i) {
      // Below the ports that the system gives to connections, as is the one 10,000 above, where a
      // node of a cluster listens too: nobody is given it while the server is stopped.
      port_ = std::uniform_int_distribution<int>(10001, 21999)(random);
      if (launch()) return;
    }
    ADD_FAILURE() << "redis-server does not start: " << log();
  }
  ~RedisServer() { stop(); }
  RedisServer(const RedisServer&) = delete;
  RedisServer& operator=(const RedisServer&) = delete;

  int port() const { return port_; }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  // After stop(), on the same port.
  void start() {
    EXPECT_TRUE(comes_true([&] { return launch(); })) << "redis-server does not start: " << log();
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
        "timeout 120 redis-cli -p " + std::to_string(port_) + " " + command + " 2>/dev/null";
    std::string out;
    FILE* pipe = popen(line.c_str(), "r");
    if (pipe == nullptr) return out;
    char buffer[4096];
    for (size_t n; (n = fread(buffer, 1, sizeof buffer, pipe)) > 0;) out.append(buffer, n);
    return pclose(pipe) == 0 ? out : std::string();
  }

 private:
  // Whether it serves. False: it has ended, which it does when its port is taken.
  bool launch() {
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
    // Its own log says it. An answer on the port might be that of another server.
    const std::string ready = std::to_string(pid_) + ":M ";
    bool has_ended = false;
    const bool is_ready = comes_true([&] {
      has_ended = waitpid(pid_, nullptr, WNOHANG) == pid_;
      if (has_ended) return true;
      std::ifstream lines(folder_.file("log"));
      for (std::string line; std::getline(lines, line);) {
        if (line.rfind(ready, 0) == 0 && line.find("Ready to accept") != std::string::npos)
          return true;
      }
      return false;
    });
    if (has_ended) pid_ = 0;
    if (!is_ready) stop();
    return is_ready && !has_ended;
  }

  std::string log() const {
    std::ifstream file(folder_.file("log"));
    return {std::istreambuf_iterator<char>(file), {}};
  }

  Folder folder_;
  std::vector<std::string> settings_;
  int port_ = 0;
  pid_t pid_ = 0;
};

}  // namespace kvc::test
