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
#include "shiplap/base/exhausted.h"
#include "shiplap/base/thread_annotations.h"
#include "shiplap/comm/failure.h"
#include "shiplap/comm/sockets/join_internal.h"
#include "shiplap/comm/sockets/protocol_internal.h"
#include "shiplap/comm/sockets/rendezvous.h"
#include "shiplap/comm/sockets/socket_internal.h"

namespace shiplap::comm {
namespace {

using InquiryKind = Inquiry::Kind;

constexpr double kAnswerWithin = 1;
constexpr double kInquiryWithin = 10;  // as for a Hello
constexpr int kBesides = 16;           // files that a process has open

std::vector<std::byte> packed(InquiryKind kind, std::string_view key, std::string_view value) {
  const auto head = encode(Inquiry{.kind = kind,
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

[[noreturn]] void throw_key_taken(const Seat& seat, const std::string& key) {
  refuse_peer(seat, fmt::format("`{}` was put into the rendezvous by another rank", key),
              "give every rank a number of its own, and every world a name");
}

Digest proof_of(const Secret& secret, std::string_view role, std::string_view question,
                std::string_view answer) {
  return secret.prove(role, std::as_bytes(std::span(question)), std::as_bytes(std::span(answer)));
}

bool is_proof(std::string_view text, const Digest& due) {
  Digest given{};
  if (text.size() != given.size()) return false;
  std::memcpy(given.data(), text.data(), given.size());
  return equal_in_constant_time(given, due);
}

// ---- rank 0

class Server final : public Meeting {
 public:
  Server(const Address& address, const Seat& seat, double deadline, const Secret& secret)
      : address_(address),
        seat_(seat),
        deadline_(deadline),
        secret_(secret),
        listener_(listen_at(address, std::max(seat.size, 16))),
        bell_(eventfd(0, EFD_CLOEXEC)) {
    reserve_descriptors(static_cast<int>(most_clients()) + kBesides);
    thread_ = start_thread([this] { serve(); });
  }

  ~Server() override {
    // Whoever leaves by an exception waits for nobody.
    ring(std::uncaught_exceptions() > 0 ? Ending::now : Ending::when_all_have);
    thread_.join();
  }

  // All have come: nobody else is let in, so that the next meeting can be at the same address.
  void end_later() override {
    ring(Ending::when_all_have, /*lets_in=*/false);
    const MutexLock lock(mutex_);
    while (!is_closed_) changed_.wait(mutex_);
  }
  [[nodiscard]] std::string own_host() const override { return address_.host; }

  void put(const std::string& key, const std::string& value) override {
    {
      const MutexLock lock(mutex_);
      if (!keep(key, value)) throw_key_taken(seat_, key);
    }
    ring(Ending::no);
  }

  std::optional<std::string> get(const std::string& key, Seconds within) override {
    const auto end = ConditionVariable::after(within.value);
    const MutexLock lock(mutex_);
    while (!values_.contains(key) && problem_ == nullptr && changed_.wait_until(mutex_, end)) {
    }
    if (problem_ != nullptr) std::rethrow_exception(problem_);
    const auto found = values_.find(key);
    return found != values_.end() ? std::optional(found->second) : std::nullopt;
  }

 private:
  enum class Ending { no, when_all_have, now };
  struct Client {
    Socket socket;
    double since = 0;  // when it last said something
    std::vector<std::byte> input;
    std::string awaited;  // a key that is not there yet
    bool has_put = false;
    // What it and we said, and whether it has proved to know the secret.
    std::string question;
    std::string answer;
    bool has_proved = false;
  };
  // Every rank comes once, and some strangers.
  [[nodiscard]] std::size_t most_clients() const {
    return 2 * static_cast<std::size_t>(seat_.size) + 64;
  }
  // A world takes one for each rank and one more; several may meet here, one after another.
  [[nodiscard]] std::size_t most_keys() const {
    return 256 * (static_cast<std::size_t>(seat_.size) + 1);
  }

  // False if another value is there, or no more can be kept.
  bool keep(const std::string& key, const std::string& value) SHIPLAP_REQUIRES(mutex_) {
    if (values_.size() >= most_keys() && !values_.contains(key)) return false;
    const auto [place, is_new] = values_.try_emplace(key, value);
    changed_.notify_all();
    return is_new;
  }
  void ring(Ending ending, bool lets_in = true) {
    {
      const MutexLock lock(mutex_);
      ending_ = std::max(ending_, ending);
      lets_in_ = lets_in_ && lets_in;
    }
    const std::uint64_t one = 1;
    (void)!write(bell_.descriptor(), &one, sizeof one);
  }

  void serve();
  void close_listener();
  void let_in();
  // It has not asked for anything yet, as a rank does at once.
  [[nodiscard]] static bool is_silent(const Client& client) {
    return !client.has_put && client.awaited.empty();
  }
  void wait_for_news();
  [[nodiscard]] bool is_over();
  // False if the client has gone, or is to go.
  bool hear(Client& client);
  bool answer_all(Client& client);
  bool answer(Client& client, InquiryKind kind, const std::string& key, const std::string& value);
  static bool reply(const Client& client, InquiryKind kind, std::string_view key,
                    std::string_view value = {}) {
    return send_all(client.socket, packed(kind, key, value), seconds_now() + kAnswerWithin);
  }
  bool greet(Client& client, const std::string& question);
  void answer_awaited();
  // Tells those who still wait why nothing more will come.
  void tell_over();

  Address address_;
  Seat seat_;
  double deadline_;
  Secret secret_;
  Socket listener_;
  Socket bell_;
  Mutex mutex_;
  ConditionVariable changed_;
  std::map<std::string, std::string> values_ SHIPLAP_GUARDED_BY(mutex_);
  Ending ending_ SHIPLAP_GUARDED_BY(mutex_) = Ending::no;
  bool lets_in_ SHIPLAP_GUARDED_BY(mutex_) = true;
  bool is_closed_ SHIPLAP_GUARDED_BY(mutex_) = false;      // the listener
  std::exception_ptr problem_ SHIPLAP_GUARDED_BY(mutex_);  // why nobody can be let in
  // Of the thread alone, as is the listener.
  std::list<Client> clients_;
  int gone_ = 0;  // ranks that came and went
  std::jthread thread_;
};

bool Server::is_over() {
  const MutexLock lock(mutex_);
  if (ending_ == Ending::now) return true;
  return ending_ == Ending::when_all_have &&
         (gone_ >= seat_.size - 1 || seconds_now() >= deadline_);
}

void Server::wait_for_news() {
  std::vector<pollfd> all{{.fd = listener_.descriptor(), .events = POLLIN, .revents = 0},
                          {.fd = bell_.descriptor(), .events = POLLIN, .revents = 0}};
  for (const Client& client : clients_) {
    all.push_back({.fd = client.socket.descriptor(), .events = POLLIN, .revents = 0});
  }
  const double seconds = std::clamp(deadline_ - seconds_now(), 0.05, 1.0);
  (void)poll(all.data(), all.size(), static_cast<int>(seconds * 1e3));
  std::uint64_t count = 0;
  if ((all[1].revents & POLLIN) != 0) (void)!read(bell_.descriptor(), &count, sizeof count);
}

void Server::let_in() {
  try {
    for (Socket socket = accept_from(listener_); socket.is_open();
         socket = accept_from(listener_)) {
      if (clients_.size() >= most_clients()) std::erase_if(clients_, is_silent);
      if (clients_.size() >= most_clients()) continue;
      clients_.push_back({.socket = std::move(socket), .since = seconds_now()});
    }
  } catch (const MissingPart&) {
    const MutexLock lock(mutex_);
    problem_ = std::current_exception();
    ending_ = Ending::now;
    changed_.notify_all();
  }
}

void Server::close_listener() {
  const MutexLock lock(mutex_);
  if (lets_in_ && ending_ != Ending::now) return;
  listener_.close();
  is_closed_ = true;
  changed_.notify_all();
}

void Server::serve() {
  while (true) {
    close_listener();
    if (is_over()) break;
    wait_for_news();
    let_in();
    const double now = seconds_now();
    std::erase_if(clients_, [&](const Client& client) {
      return is_silent(client) && now > client.since + kInquiryWithin;
    });
    for (auto client = clients_.begin(); client != clients_.end();) {
      if (hear(*client)) {
        ++client;
        continue;
      }
      if (client->has_put) ++gone_;
      client = clients_.erase(client);
    }
    answer_awaited();
  }
  tell_over();
}

void Server::tell_over() {
  std::string why = to_text({.culprit = -1, .why = "not all ranks had come in time"});
  {
    const MutexLock lock(mutex_);
    if (ending_ == Ending::now) why = to_text({.culprit = 0, .why = "it left by an exception"});
    for (const auto& [key, value] : values_) {
      if (key.ends_with(given_up_key("", 0))) why = value;
    }
  }
  for (const Client& client : clients_) {
    if (client.has_proved) (void)reply(client, InquiryKind::over, {}, why);
  }
}

bool Server::hear(Client& client) {
  std::array<std::byte, 4096> piece{};
  while (true) {
    const auto moved = client.socket.receive(piece);
    if (moved.would_wait) return answer_all(client);
    if (moved.bytes == 0) {  // what it said last may be why it went
      (void)answer_all(client);
      return false;
    }
    client.input.insert(client.input.end(), piece.begin(),
                        piece.begin() + static_cast<std::ptrdiff_t>(moved.bytes));
    if (client.input.size() > Inquiry::kBytes + Inquiry::kMostKey + Inquiry::kMostValue) {
      return answer_all(client);
    }
  }
}

bool Server::answer_all(Client& client) {
  while (client.input.size() >= Inquiry::kBytes) {
    const auto inquiry = decode_inquiry(std::span(client.input).first<Inquiry::kBytes>());
    if (!inquiry) return false;
    if (inquiry->version != kSocketsVersion) {
      (void)reply(client, InquiryKind::other_version, {});
      return false;
    }
    const std::size_t length = Inquiry::kBytes + inquiry->key + inquiry->value;
    if (client.input.size() < length) return true;
    const auto rest = std::span<const std::byte>(client.input).subspan(Inquiry::kBytes);
    const std::string key = text_of(rest.first(inquiry->key));
    const std::string value = text_of(rest.subspan(inquiry->key, inquiry->value));
    client.input.erase(client.input.begin(),
                       client.input.begin() + static_cast<std::ptrdiff_t>(length));
    if (!answer(client, inquiry->kind, key, value)) return false;
  }
  return true;
}

bool Server::answer(Client& client, InquiryKind kind, const std::string& key,
                    const std::string& value) {
  if (kind == InquiryKind::greeting) return greet(client, value);
  if (kind == InquiryKind::proof) {
    client.has_proved = !client.answer.empty() &&
                        is_proof(value, proof_of(secret_, "proof", client.question, client.answer));
    return client.has_proved;
  }
  if (!client.has_proved) return false;
  if (kind == InquiryKind::get) {
    client.awaited = key;
    return true;
  }
  if (kind != InquiryKind::put) return false;
  bool kept = false;
  {
    const MutexLock lock(mutex_);
    kept = keep(key, value);
  }
  client.has_put = client.has_put || kept;
  return reply(client, kept ? InquiryKind::done : InquiryKind::taken, key) && kept;
}

bool Server::greet(Client& client, const std::string& question) {
  if (question.size() != std::tuple_size_v<Nonce> || !client.answer.empty()) return false;
  client.question = question;
  client.answer = text_of(random_nonce());
  return reply(client, InquiryKind::greeting, {},
               client.answer + text_of(proof_of(secret_, "answer", question, client.answer)));
}

void Server::answer_awaited() {
  for (Client& client : clients_) {
    if (client.awaited.empty()) continue;
    std::optional<std::string> value;
    {
      const MutexLock lock(mutex_);
      const auto found = values_.find(client.awaited);
      if (found != values_.end()) value = found->second;
    }
    if (!value) continue;
    // Who does not hear it has gone.
    (void)reply(client, InquiryKind::done, std::exchange(client.awaited, {}), *value);
  }
}

// ---- the others

class Visitor final : public Meeting {
 public:
  Visitor(const Address& address, const Seat& seat, double deadline, const Secret& secret)
      : address_(address),
        seat_(seat),
        deadline_(deadline),
        socket_(connect_to(address, deadline)) {
    if (!socket_.is_open()) fail_late("nothing listens there");
    greet(secret);
  }

  void end_later() override { socket_.close(); }
  [[nodiscard]] std::string own_host() const override { return socket_.own_address().host; }

  void put(const std::string& key, const std::string& value) override {
    ask(packed(InquiryKind::put, key, value), deadline_);
    const auto answer = take(key, deadline_);
    if (!answer) fail_late("what listens there does not answer");
    if (answer->kind == InquiryKind::taken) throw_key_taken(seat_, key);
  }

  std::optional<std::string> get(const std::string& key, Seconds within) override {
    const double deadline = seconds_now() + within.value;
    ask(packed(InquiryKind::get, key, {}), deadline);
    auto answer = take(key, deadline);
    return answer ? std::optional(std::move(answer->value)) : std::nullopt;
  }

 private:
  void greet(const Secret& secret);
  void ask(const std::vector<std::byte>& bytes, double deadline) {
    if (send_all(socket_, bytes, deadline)) return;
    while (take_any(seconds_now() + kAnswerWithin)) {  // it may have said why it went
    }
    fail_gone();
  }
  [[noreturn]] void fail_late(const char* why) const {
    fail_to_meet(seat_, fmt::format("rank 0 did not answer at {} in time", to_string(address_)),
                 {0}, why);
  }
  [[noreturn]] void fail_gone() const {
    fail_to_meet_rank(seat_, 0,
                      fmt::format("it left {} before the ranks had met", to_string(address_)));
  }
  [[noreturn]] void throw_unexpected_peer() const {
    refuse_peer(seat_,
                fmt::format("what answers at {} is not rank 0 of Shiplap", to_string(address_)),
                "is the port that of another program?");
  }
  struct Answer {
    InquiryKind kind = InquiryKind::done;
    std::string key;
    std::string value;
  };
  // The answer about a key, unless time is up first. One about another key was given up before.
  std::optional<Answer> take(const std::string& key, double deadline);
  std::optional<Answer> take_any(double deadline);
  bool receive(std::span<std::byte> bytes, double deadline);

  Address address_;
  Seat seat_;
  double deadline_;
  Socket socket_;
};

bool Visitor::receive(std::span<std::byte> bytes, double deadline) {
  if (!wait_ready(socket_, Ready::read, deadline)) return false;
  // What has begun to come is short.
  if (!receive_all(socket_, bytes, std::max(deadline, seconds_now() + kAnswerWithin))) fail_gone();
  return true;
}

void Visitor::greet(const Secret& secret) {
  const std::string question = text_of(random_nonce());
  ask(packed(InquiryKind::greeting, {}, question), deadline_);
  const auto answer = take_any(deadline_);
  if (!answer) fail_late("what listens there does not answer");
  constexpr std::size_t kNonce = std::tuple_size_v<Nonce>;
  if (answer->kind != InquiryKind::greeting || answer->value.size() < kNonce) {
    throw_unexpected_peer();
  }
  const std::string nonce = answer->value.substr(0, kNonce);
  if (!is_proof(answer->value.substr(kNonce), proof_of(secret, "answer", question, nonce))) {
    refuse_peer(
        seat_,
        fmt::format("what answers at {} does not know the secret of this job", to_string(address_)),
        "give all ranks the same SHIPLAP_SECRET");
  }
  ask(packed(InquiryKind::proof, {}, text_of(proof_of(secret, "proof", question, nonce))),
      deadline_);
}

std::optional<Visitor::Answer> Visitor::take(const std::string& key, double deadline) {
  auto answer = take_any(deadline);
  while (answer && answer->key != key) answer = take_any(deadline);
  return answer;
}

std::optional<Visitor::Answer> Visitor::take_any(double deadline) {
  std::array<std::byte, Inquiry::kBytes> head{};
  if (!receive(head, deadline)) return std::nullopt;
  const auto answer = decode_inquiry(head);
  if (!answer) throw_unexpected_peer();
  if (answer->kind == InquiryKind::other_version || answer->version != kSocketsVersion) {
    refuse_peer(seat_,
                fmt::format("rank 0 speaks version {} of the protocol, this rank {}",
                            answer->version, kSocketsVersion),
                "use the same version of Shiplap for all ranks");
  }
  const bool is_answer = answer->kind == InquiryKind::done || answer->kind == InquiryKind::taken ||
                         answer->kind == InquiryKind::greeting || answer->kind == InquiryKind::over;
  if (!is_answer) throw_unexpected_peer();
  std::vector<std::byte> rest(answer->key + answer->value);
  if (!rest.empty() && !receive(rest, seconds_now() + kAnswerWithin)) fail_gone();
  const auto bytes = std::span<const std::byte>(rest);
  if (answer->kind == InquiryKind::over) {
    fail_given_up(seat_, 0, parse_given_up(text_of(bytes.subspan(answer->key))));
  }
  return Answer{.kind = answer->kind,
                .key = text_of(bytes.first(answer->key)),
                .value = text_of(bytes.subspan(answer->key))};
}

// ---- a list

class List final : public Rendezvous {
 public:
  explicit List(const std::vector<std::string>& addresses) : addresses_(addresses) {
    for (const std::string& one : addresses) (void)parse_address(one, "an address", Port::needed);
  }
  void put(const std::string& /*key*/, const std::string& /*value*/) override {}
  std::optional<std::string> get(const std::string& key, Seconds /*within*/) override {
    const std::string last = key.substr(key.rfind('/') + 1);
    if (last == "session") return fmt::format("{:016x}", number());
    const bool is_note = key.ends_with("gave-up/" + last);  // which cannot be left in a list
    if (is_note) return to_text({.why = "why is not known"});
    return addresses_.at(std::stoul(last));
  }

 private:
  // The same for all that have the same list.
  [[nodiscard]] std::uint64_t number() const {
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

std::unique_ptr<Meeting> meet_at(const std::string& address, const Seat& seat, Seconds within,
                                 const std::string& secret) {
  const Address place = parse_address(address, "the address of rank 0", Port::needed);
  const double deadline = seconds_now() + within.value;
  if (seat.rank == 0) return std::make_unique<Server>(place, seat, deadline, Secret(secret));
  return std::make_unique<Visitor>(place, seat, deadline, Secret(secret));
}

std::unique_ptr<Rendezvous> meet_by_list(const std::vector<std::string>& addresses) {
  return std::make_unique<List>(addresses);
}

}  // namespace shiplap::comm
