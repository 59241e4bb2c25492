// A key-value store over TCP, as torch's TCPStore: a thread of rank 0 serves it to the other ranks.
//
// A key is written once; a second rank that writes it has the same number, which is an error
// (D307). A get waits on the server until the key exists, so clients do not poll. The client may
// time out first; it then discards the late reply, whose key is not the one that it waits for.
//
// A connection begins with a nonce of each side and a proof of each side that it knows the secret
// of the job (HMAC of both nonces). Before that no request is accepted. Connections that send no
// request are closed after 10 s, or earlier if there are too many, so they cannot keep ranks out.
//
// Rank 0 may be done before the others are. It keeps serving until all have disconnected or the
// deadline has passed, then sends the reason to those that still wait. The listener is closed
// before that, so that the next world of the job can use the same address.
#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <list>
#include <map>

#include "shiplap/base/error.h"
#include "shiplap/base/resources.h"
#include "shiplap/base/thread_annotations.h"
#include "shiplap/comm/failure.h"
#include "shiplap/comm/sockets/join_internal.h"
#include "shiplap/comm/sockets/protocol_internal.h"
#include "shiplap/comm/sockets/rendezvous.h"
#include "shiplap/comm/sockets/socket_internal.h"

namespace shiplap::comm {
namespace {

using StoreKind = StoreMessage::Kind;

constexpr double kStoreReplyWithin = 1;
constexpr double kRequestWithin = 10;  // as for a handshake between ranks
constexpr int kOtherFiles = 16;        // descriptors that a process has open

std::vector<std::byte> encode_message(StoreKind kind, std::string_view key,
                                      std::string_view value) {
  const auto head = encode(StoreMessage{.kind = kind,
                                        .key = static_cast<std::uint32_t>(key.size()),
                                        .value = static_cast<std::uint32_t>(value.size())});
  std::vector<std::byte> bytes(head.begin(), head.end());
  for (const std::string_view part : {key, value}) {
    const auto more = std::as_bytes(std::span(part));
    bytes.insert(bytes.end(), more.begin(), more.end());
  }
  return bytes;
}

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

[[noreturn]] void throw_key_exists(const RankInfo& self, const std::string& key) {
  throw_bad_peer(
      self, fmt::format("key `{}` already exists in the rendezvous: another rank has put it", key),
      "give every rank a number of its own, and every world a name");
}

Digest proof_of(const Secret& secret, std::string_view role, std::string_view client_nonce,
                std::string_view server_nonce) {
  return secret.prove(role, std::as_bytes(std::span(client_nonce)),
                      std::as_bytes(std::span(server_nonce)));
}

bool is_proof(std::string_view text, const Digest& expected) {
  Digest given{};
  if (text.size() != given.size()) return false;
  std::memcpy(given.data(), text.data(), given.size());
  return equal_in_constant_time(given, expected);
}

// ---- the server: rank 0

class TcpStoreServer final : public TcpStore {
 public:
  TcpStoreServer(const Address& address, const RankInfo& self, double deadline,
                 const Secret& secret)
      : address_(address),
        self_(self),
        deadline_(deadline),
        secret_(secret),
        listener_(listen_at(address, std::max(self.size, 16))),
        wakeup_fd_(eventfd(0, EFD_CLOEXEC)) {
    reserve_descriptors(static_cast<int>(max_clients()) + kOtherFiles);
    thread_ = start_thread([this] { serve(); });
  }

  ~TcpStoreServer() override {
    // After an exception, do not wait for the clients.
    wake(std::uncaught_exceptions() > 0 ? Shutdown::now : Shutdown::when_all_left);
    thread_.join();
  }

  // Returns when the listener is closed, so that the next store can use the same address.
  void shut_down() override {
    wake(Shutdown::when_all_left, /*accepts=*/false);
    const MutexLock lock(mutex_);
    while (!is_closed_) changed_.wait(mutex_);
  }
  [[nodiscard]] std::string local_host() const override { return address_.host; }

  void put(const std::string& key, const std::string& value) override {
    {
      const MutexLock lock(mutex_);
      if (!insert(key, value)) throw_key_exists(self_, key);
    }
    wake(Shutdown::no);
  }

  std::optional<std::string> get(const std::string& key, Seconds within) override {
    const auto end = ConditionVariable::after(within.value);
    const MutexLock lock(mutex_);
    while (!values_.contains(key) && error_ == nullptr && changed_.wait_until(mutex_, end)) {
    }
    if (error_ != nullptr) std::rethrow_exception(error_);
    const auto found = values_.find(key);
    return found != values_.end() ? std::optional(found->second) : std::nullopt;
  }

 private:
  enum class Shutdown { no, when_all_left, now };
  struct Client {
    Socket socket;
    double since = 0;  // when it connected
    std::vector<std::byte> input;
    std::string awaited;  // the key of a pending get
    bool has_put = false;
    std::string client_nonce;
    std::string server_nonce;
    bool is_authenticated = false;
  };
  // One for every rank, and some for unknown peers.
  [[nodiscard]] std::size_t max_clients() const {
    return 2 * static_cast<std::size_t>(self_.size) + 64;
  }
  // A world has one per rank and one more; several worlds may use the store, one after another.
  [[nodiscard]] std::size_t max_keys() const {
    return 256 * (static_cast<std::size_t>(self_.size) + 1);
  }

  // Returns false if the key exists, or the store is full.
  bool insert(const std::string& key, const std::string& value) SHIPLAP_REQUIRES(mutex_) {
    if (values_.size() >= max_keys() && !values_.contains(key)) return false;
    const auto [entry, is_new] = values_.try_emplace(key, value);
    changed_.notify_all();
    return is_new;
  }
  void wake(Shutdown shutdown, bool accepts = true) {
    {
      const MutexLock lock(mutex_);
      shutdown_ = std::max(shutdown_, shutdown);
      accepts_ = accepts_ && accepts;
    }
    const std::uint64_t one = 1;
    (void)!write(wakeup_fd_.descriptor(), &one, sizeof one);
  }

  void serve();
  void close_listener();
  void accept_connections();
  // It has sent no request, which a rank does at once.
  [[nodiscard]] static bool is_idle(const Client& client) {
    return !client.has_put && client.awaited.empty();
  }
  void poll_sockets();
  [[nodiscard]] bool is_over();
  // Returns false if the client has disconnected, or is to be disconnected.
  bool read_requests(Client& client);
  bool handle_requests(Client& client);
  bool handle_request(Client& client, StoreKind kind, const std::string& key,
                      const std::string& value);
  static bool reply(const Client& client, StoreKind kind, std::string_view key,
                    std::string_view value = {}) {
    return send_all(client.socket, encode_message(kind, key, value),
                    seconds_now() + kStoreReplyWithin);
  }
  bool handshake(Client& client, const std::string& client_nonce);
  void reply_to_gets();
  // Sends the reason to the clients that still wait.
  void send_shutdown();

  Address address_;
  RankInfo self_;
  double deadline_;
  Secret secret_;
  Socket listener_;
  Socket wakeup_fd_;
  Mutex mutex_;
  ConditionVariable changed_;
  std::map<std::string, std::string> values_ SHIPLAP_GUARDED_BY(mutex_);
  Shutdown shutdown_ SHIPLAP_GUARDED_BY(mutex_) = Shutdown::no;
  bool accepts_ SHIPLAP_GUARDED_BY(mutex_) = true;
  bool is_closed_ SHIPLAP_GUARDED_BY(mutex_) = false;    // the listener
  std::exception_ptr error_ SHIPLAP_GUARDED_BY(mutex_);  // accept() failed
  // Used by the thread only, as is the listener.
  std::list<Client> clients_;
  int departed_ = 0;  // ranks that have disconnected
  std::jthread thread_;
};

bool TcpStoreServer::is_over() {
  const MutexLock lock(mutex_);
  if (shutdown_ == Shutdown::now) return true;
  return shutdown_ == Shutdown::when_all_left &&
         (departed_ >= self_.size - 1 || seconds_now() >= deadline_);
}

void TcpStoreServer::poll_sockets() {
  std::vector<pollfd> all{{.fd = listener_.descriptor(), .events = POLLIN, .revents = 0},
                          {.fd = wakeup_fd_.descriptor(), .events = POLLIN, .revents = 0}};
  for (const Client& client : clients_) {
    all.push_back({.fd = client.socket.descriptor(), .events = POLLIN, .revents = 0});
  }
  const double seconds = std::clamp(deadline_ - seconds_now(), 0.05, 1.0);
  (void)poll(all.data(), all.size(), static_cast<int>(seconds * 1e3));
  std::uint64_t count = 0;
  if ((all[1].revents & POLLIN) != 0) (void)!read(wakeup_fd_.descriptor(), &count, sizeof count);
}

void TcpStoreServer::accept_connections() {
  try {
    for (Socket socket = accept_from(listener_); socket.is_open();
         socket = accept_from(listener_)) {
      if (clients_.size() >= max_clients()) std::erase_if(clients_, is_idle);
      if (clients_.size() >= max_clients()) continue;
      clients_.push_back({.socket = std::move(socket), .since = seconds_now()});
    }
  } catch (const MissingDependency&) {
    const MutexLock lock(mutex_);
    error_ = std::current_exception();
    shutdown_ = Shutdown::now;
    changed_.notify_all();
  }
}

void TcpStoreServer::close_listener() {
  const MutexLock lock(mutex_);
  if (accepts_ && shutdown_ != Shutdown::now) return;
  listener_.close();
  is_closed_ = true;
  changed_.notify_all();
}

void TcpStoreServer::serve() {
  while (true) {
    close_listener();
    if (is_over()) break;
    poll_sockets();
    accept_connections();
    const double now = seconds_now();
    std::erase_if(clients_, [&](const Client& client) {
      return is_idle(client) && now > client.since + kRequestWithin;
    });
    for (auto client = clients_.begin(); client != clients_.end();) {
      if (read_requests(*client)) {
        ++client;
        continue;
      }
      if (client->has_put) ++departed_;
      client = clients_.erase(client);
    }
    reply_to_gets();
  }
  send_shutdown();
}

void TcpStoreServer::send_shutdown() {
  std::string why =
      format_join_failure({.culprit = -1, .why = "timed out: not all ranks had connected"});
  {
    const MutexLock lock(mutex_);
    if (shutdown_ == Shutdown::now)
      why = format_join_failure({.culprit = 0, .why = "it exited with an exception"});
    for (const auto& [key, value] : values_) {
      if (key.ends_with(join_failure_key("", 0))) why = value;
    }
  }
  for (const Client& client : clients_) {
    if (client.is_authenticated) (void)reply(client, StoreKind::shutdown, {}, why);
  }
}

bool TcpStoreServer::read_requests(Client& client) {
  std::array<std::byte, 4096> piece{};
  while (true) {
    const auto moved = client.socket.receive(piece);
    if (moved.would_block) return handle_requests(client);
    if (moved.bytes == 0) {  // its last request may be the reason why it disconnected
      (void)handle_requests(client);
      return false;
    }
    client.input.insert(client.input.end(), piece.begin(),
                        piece.begin() + static_cast<std::ptrdiff_t>(moved.bytes));
    if (client.input.size() >
        StoreMessage::kBytes + StoreMessage::kMaxKey + StoreMessage::kMaxValue) {
      return handle_requests(client);
    }
  }
}

bool TcpStoreServer::handle_requests(Client& client) {
  while (client.input.size() >= StoreMessage::kBytes) {
    const auto message =
        decode_store_message(std::span(client.input).first<StoreMessage::kBytes>());
    if (!message) return false;
    if (message->version != kSocketsVersion) {
      (void)reply(client, StoreKind::version_mismatch, {});
      return false;
    }
    const std::size_t length = StoreMessage::kBytes + message->key + message->value;
    if (client.input.size() < length) return true;
    const auto rest = std::span<const std::byte>(client.input).subspan(StoreMessage::kBytes);
    const std::string key = text_of(rest.first(message->key));
    const std::string value = text_of(rest.subspan(message->key, message->value));
    client.input.erase(client.input.begin(),
                       client.input.begin() + static_cast<std::ptrdiff_t>(length));
    if (!handle_request(client, message->kind, key, value)) return false;
  }
  return true;
}

bool TcpStoreServer::handle_request(Client& client, StoreKind kind, const std::string& key,
                                    const std::string& value) {
  if (kind == StoreKind::hello) return handshake(client, value);
  if (kind == StoreKind::proof) {
    client.is_authenticated =
        !client.server_nonce.empty() &&
        is_proof(value, proof_of(secret_, "proof", client.client_nonce, client.server_nonce));
    return client.is_authenticated;
  }
  if (!client.is_authenticated) return false;
  if (kind == StoreKind::get) {
    client.awaited = key;
    return true;
  }
  if (kind != StoreKind::put) return false;
  bool is_new = false;
  {
    const MutexLock lock(mutex_);
    is_new = insert(key, value);
  }
  client.has_put = client.has_put || is_new;
  return reply(client, is_new ? StoreKind::ok : StoreKind::key_exists, key) && is_new;
}

bool TcpStoreServer::handshake(Client& client, const std::string& client_nonce) {
  if (client_nonce.size() != std::tuple_size_v<Nonce> || !client.server_nonce.empty()) return false;
  client.client_nonce = client_nonce;
  client.server_nonce = text_of(random_nonce());
  return reply(client, StoreKind::hello, {},
               client.server_nonce +
                   text_of(proof_of(secret_, "answer", client_nonce, client.server_nonce)));
}

void TcpStoreServer::reply_to_gets() {
  for (Client& client : clients_) {
    if (client.awaited.empty()) continue;
    std::optional<std::string> value;
    {
      const MutexLock lock(mutex_);
      const auto found = values_.find(client.awaited);
      if (found != values_.end()) value = found->second;
    }
    if (!value) continue;
    // A failed send means that the client has disconnected.
    (void)reply(client, StoreKind::ok, std::exchange(client.awaited, {}), *value);
  }
}

// ---- the client: all other ranks

class TcpStoreClient final : public TcpStore {
 public:
  TcpStoreClient(const Address& address, const RankInfo& self, double deadline,
                 const Secret& secret)
      : address_(address),
        self_(self),
        deadline_(deadline),
        socket_(connect_to(address, deadline)) {
    if (!socket_.is_open()) fail_store_timeout("it does not accept connections");
    handshake(secret);
  }

  void shut_down() override { socket_.close(); }
  [[nodiscard]] std::string local_host() const override { return socket_.local_address().host; }

  void put(const std::string& key, const std::string& value) override {
    send_request(encode_message(StoreKind::put, key, value), deadline_);
    const auto reply = receive_reply(key, deadline_);
    if (!reply) fail_store_timeout("the server does not reply");
    if (reply->kind == StoreKind::key_exists) throw_key_exists(self_, key);
  }

  std::optional<std::string> get(const std::string& key, Seconds within) override {
    const double deadline = seconds_now() + within.value;
    send_request(encode_message(StoreKind::get, key, {}), deadline);
    auto reply = receive_reply(key, deadline);
    return reply ? std::optional(std::move(reply->value)) : std::nullopt;
  }

 private:
  void handshake(const Secret& secret);
  void send_request(const std::vector<std::byte>& bytes, double deadline) {
    if (send_all(socket_, bytes, deadline)) return;
    while (receive_any(seconds_now() + kStoreReplyWithin)) {  // it may have sent the reason
    }
    fail_disconnected();
  }
  [[noreturn]] void fail_store_timeout(const char* why) const {
    throw_join_timeout(
        self_, fmt::format("connecting to rank 0 at {} timed out", to_string(address_)), {0}, why);
  }
  [[noreturn]] void fail_disconnected() const {
    throw_rank_failed(
        self_, 0,
        fmt::format("it closed the store at {} while the ranks connected", to_string(address_)));
  }
  [[noreturn]] void throw_unexpected_peer() const {
    throw_bad_peer(self_,
                   fmt::format("the server at {} is not Shiplap rank 0", to_string(address_)),
                   "check whether another program uses this port");
  }
  struct Reply {
    StoreKind kind = StoreKind::ok;
    std::string key;
    std::string value;
  };
  // Returns the reply about a key; nothing if the deadline passes. A reply about another key is
  // late, and discarded.
  std::optional<Reply> receive_reply(const std::string& key, double deadline);
  std::optional<Reply> receive_any(double deadline);
  bool receive(std::span<std::byte> bytes, double deadline);

  Address address_;
  RankInfo self_;
  double deadline_;
  Socket socket_;
};

bool TcpStoreClient::receive(std::span<std::byte> bytes, double deadline) {
  if (!wait_ready(socket_, Ready::read, deadline)) return false;
  // The rest of a message that has begun is short.
  if (!receive_all(socket_, bytes, std::max(deadline, seconds_now() + kStoreReplyWithin))) {
    fail_disconnected();
  }
  return true;
}

void TcpStoreClient::handshake(const Secret& secret) {
  const std::string client_nonce = text_of(random_nonce());
  send_request(encode_message(StoreKind::hello, {}, client_nonce), deadline_);
  const auto reply = receive_any(deadline_);
  if (!reply) fail_store_timeout("the server does not reply");
  constexpr std::size_t kNonce = std::tuple_size_v<Nonce>;
  if (reply->kind != StoreKind::hello || reply->value.size() < kNonce) {
    throw_unexpected_peer();
  }
  const std::string server_nonce = reply->value.substr(0, kNonce);
  if (!is_proof(reply->value.substr(kNonce),
                proof_of(secret, "answer", client_nonce, server_nonce))) {
    throw_bad_peer(self_, fmt::format("the server at {} has the wrong secret", to_string(address_)),
                   "give all ranks the same SHIPLAP_SECRET");
  }
  send_request(encode_message(StoreKind::proof, {},
                              text_of(proof_of(secret, "proof", client_nonce, server_nonce))),
               deadline_);
}

std::optional<TcpStoreClient::Reply> TcpStoreClient::receive_reply(const std::string& key,
                                                                   double deadline) {
  auto reply = receive_any(deadline);
  while (reply && reply->key != key) reply = receive_any(deadline);
  return reply;
}

std::optional<TcpStoreClient::Reply> TcpStoreClient::receive_any(double deadline) {
  std::array<std::byte, StoreMessage::kBytes> head{};
  if (!receive(head, deadline)) return std::nullopt;
  const auto reply = decode_store_message(head);
  if (!reply) throw_unexpected_peer();
  if (reply->kind == StoreKind::version_mismatch || reply->version != kSocketsVersion) {
    throw_bad_peer(self_,
                   fmt::format("protocol version mismatch: rank 0 has version {}, this rank {}",
                               reply->version, kSocketsVersion),
                   "use the same version of Shiplap for all ranks");
  }
  const bool is_reply = reply->kind == StoreKind::ok || reply->kind == StoreKind::key_exists ||
                        reply->kind == StoreKind::hello || reply->kind == StoreKind::shutdown;
  if (!is_reply) throw_unexpected_peer();
  std::vector<std::byte> rest(reply->key + reply->value);
  if (!rest.empty() && !receive(rest, seconds_now() + kStoreReplyWithin)) fail_disconnected();
  const auto bytes = std::span<const std::byte>(rest);
  if (reply->kind == StoreKind::shutdown) {
    throw_join_failure(self_, 0, parse_join_failure(text_of(bytes.subspan(reply->key))));
  }
  return Reply{.kind = reply->kind,
               .key = text_of(bytes.first(reply->key)),
               .value = text_of(bytes.subspan(reply->key))};
}

// ---- a static list

class StaticRendezvous final : public Rendezvous {
 public:
  explicit StaticRendezvous(const std::vector<std::string>& addresses) : addresses_(addresses) {
    for (const std::string& one : addresses) (void)parse_address(one, "an address", Port::needed);
  }
  void put(const std::string& /*key*/, const std::string& /*value*/) override {}
  std::optional<std::string> get(const std::string& key, Seconds /*within*/) override {
    const std::string last = key.substr(key.rfind('/') + 1);
    if (last == "session") return fmt::format("{:016x}", session());
    const bool is_note = key.ends_with("gave-up/" + last);  // a list cannot store one
    if (is_note) return format_join_failure({.why = "the reason is unknown"});
    return addresses_.at(std::stoul(last));
  }

 private:
  // The same for all ranks that have the same list.
  [[nodiscard]] std::uint64_t session() const {
    std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
    for (const std::string& address : addresses_) {
      for (const char letter : address + ",") {
        hash = (hash ^ static_cast<std::uint8_t>(letter)) * 0x100000001b3;
      }
    }
    return hash;
  }

  std::vector<std::string> addresses_;
};

}  // namespace

std::unique_ptr<TcpStore> connect_store(const std::string& address, const RankInfo& self,
                                        Seconds within, const std::string& secret) {
  const Address parsed = parse_address(address, "the address of rank 0", Port::needed);
  const double deadline = seconds_now() + within.value;
  if (self.rank == 0)
    return std::make_unique<TcpStoreServer>(parsed, self, deadline, Secret(secret));
  return std::make_unique<TcpStoreClient>(parsed, self, deadline, Secret(secret));
}

std::unique_ptr<Rendezvous> make_static_rendezvous(const std::vector<std::string>& addresses) {
  return std::make_unique<StaticRendezvous>(addresses);
}

}  // namespace shiplap::comm
